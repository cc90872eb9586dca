#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "calibrate/probe/host_threads.h"
#include "calibrate/probe/host_work_kinds.h"

namespace rehearse::calibrate {
namespace {

std::string reason(const std::string& what) { return what + ": " + std::strerror(errno); }

class FileWork final : public Work {
 public:
  FileWork(const Facts& parameters, const std::string& directory)
      : writes_(std::get<std::string>(parameters.at("direction")) == "write"),
        block_(static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("block_bytes")))),
        depth_(static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("depth")))),
        blocks_(static_cast<std::size_t>(std::get<std::int64_t>(parameters.at("bytes"))) / block_) {
    struct statfs kind{};
    // Since Linux 6.6 tmpfs takes O_DIRECT too, and would be timed as the fastest of disks.
    if (::statfs(directory.c_str(), &kind) == 0 && (kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC))
      throw NotPossible("the directory lies in memory, so O_DIRECT would time no disk; name one on a disk");
    struct statvfs room{};
    if (::statvfs(directory.c_str(), &room) != 0) throw NotPossible(reason("cannot look at " + directory));
    if (room.f_bavail * room.f_frsize < 2 * block_ * blocks_) throw NotPossible("too little room in the directory for the test file");
    std::string name = directory + "/rehearse-probe-XXXXXX";
    file_ = ::mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
    const int error = errno;
    if (file_ >= 0) ::unlink(name.c_str());
    if (file_ < 0) {
      errno = error;
      throw NotPossible(error == EINVAL ? "the directory's file system has no direct access (O_DIRECT); name one on a disk"
                                        : reason("cannot make a file in the directory"));
    }
    std::mt19937_64 random(1);  // drives that compress must find nothing to compress
    for (std::size_t t = 0; t < depth_; ++t) {
      void* buffer = std::aligned_alloc(4096, block_);
      if (buffer == nullptr) throw NotPossible("the host has too little memory");
      buffers_.push_back(buffer);
      auto* words = static_cast<std::uint64_t*>(buffer);
      for (std::size_t i = 0; i < block_ / sizeof(std::uint64_t); ++i) words[i] = random();
    }
    try {
      pass(true);  // room on the disk, and something to read
    } catch (...) {
      clear();
      throw;
    }
  }
  ~FileWork() override { clear(); }

  double run(std::int64_t count) override {
    double seconds = 0;
    for (std::int64_t i = 0; i < count; ++i) seconds += pass(writes_);
    return seconds;
  }

 private:
  double pass(bool write) {
    return timed_on_threads(depth_, [&](std::size_t t) {
      for (std::size_t b = t; b < blocks_; b += depth_) {
        const auto offset = static_cast<off_t>(b * block_);
        const ssize_t n = write ? ::pwrite(file_, buffers_[t], block_, offset) : ::pread(file_, buffers_[t], block_, offset);
        if (n != static_cast<ssize_t>(block_)) throw NotPossible(n < 0 ? reason(write ? "cannot write the test file" : "cannot read the test file") : "the disk is full");
      }
    });
  }
  void clear() {
    for (void* b : buffers_) std::free(b);
    buffers_.clear();
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }

  bool writes_;
  std::size_t block_, depth_, blocks_;
  int file_ = -1;
  std::vector<void*> buffers_;
};

}  // namespace

std::unique_ptr<Work> prepare_file(const Facts& parameters, const std::string& directory) {
  if (directory.empty()) throw NotPossible("no directory was named for it (--directory)");
  return std::make_unique<FileWork>(parameters, directory);
}

}  // namespace rehearse::calibrate
