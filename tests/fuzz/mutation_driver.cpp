// Runs a fuzz target where there is no libFuzzer: bytes, words and lines of the corpus are changed at random, without looking
// at coverage. Usage: fuzz_NAME SECONDS SEED CRASH_FOLDER CORPUS...     An input that crashes, aborts or takes longer than ten
// seconds is written to CRASH_FOLDER, and the program ends with code 1.
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::string now, crash_file;  // what is being run; where it goes if that is its last run

void keep() {
  const int file = ::open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  for (std::size_t done = 0; file >= 0 && done < now.size();) {
    const ssize_t n = ::write(file, now.data() + done, now.size() - done);
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  constexpr char text[] = "the target ended badly: its input is in the crash folder\n";
  if (::write(2, text, sizeof text - 1) < 0) std::_Exit(3);
}

void keep_and_end(int signal) {
  keep();
  std::_Exit(signal == SIGALRM ? 2 : 1);
}

using Draw = std::mt19937_64;

std::size_t below(Draw& draw, std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(draw() % n); }

/// Where words and lines of a text begin and end.
std::vector<std::pair<std::size_t, std::size_t>> pieces(const std::string& text, bool lines) {
  std::vector<std::pair<std::size_t, std::size_t>> out;
  const std::string ends = lines ? "\n" : " \t\n,:{}[]()\"'=<>|/";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(ends, at), text.size());
    if (end > at) out.emplace_back(at, end - at);
    at = end + 1;
  }
  return out;
}

std::string mutated(const std::vector<std::string>& corpus, Draw& draw) {
  static const std::vector<std::string> odd{"0", "-1", "1", "2", "3", "7", "64", "4096", "1e309", "nan", "inf", "-0", "99999999999999999999", "9223372036854775807", "4294967296", "1e-320", "true", "null", "", "~",
                                            "{}", "[]", "\"", "\x01", "\xff", "é", "1.5", "0x10", "auto", "none", "1 GiB", "5 us", "*", "&a", "<<", "---", "%"};
  std::string text = corpus[below(draw, corpus.size())];
  const std::string& other = corpus[below(draw, corpus.size())];
  for (std::size_t change = 1 + below(draw, 6); change > 0; --change) {
    const bool lines = draw() % 3 == 0;
    const auto mine = pieces(text, lines), theirs = pieces(other, lines);
    switch (draw() % 9) {
      case 0: if (!text.empty()) text[below(draw, text.size())] = static_cast<char>(draw() % 256); break;
      case 1: text.insert(below(draw, text.size() + 1), 1, static_cast<char>(draw() % 256)); break;
      case 2: if (!text.empty()) text.erase(below(draw, text.size()), 1 + below(draw, 8)); break;
      case 3: text = text.substr(0, below(draw, text.size() + 1)) + other.substr(below(draw, other.size() + 1)); break;
      case 4:
      case 5:
        if (!mine.empty() && !theirs.empty()) {
          const auto [at, n] = mine[below(draw, mine.size())];
          const auto [from, m] = theirs[below(draw, theirs.size())];
          text.replace(at, n, other.substr(from, m));
        }
        break;
      case 6:
      case 7:
        if (!mine.empty()) {
          const auto [at, n] = mine[below(draw, mine.size())];
          text.replace(at, n, odd[below(draw, odd.size())]);
        }
        break;
      default:
        if (!mine.empty()) {
          const auto [at, n] = mine[below(draw, mine.size())];
          const std::string piece = text.substr(at, n + 1);
          if (draw() % 2 == 0) text.insert(at, piece);
          else text.erase(at, n + 1);
        }
    }
    if (text.size() > 65536) text.resize(65536);
  }
  return text;
}

}  // namespace

int main(int count, char** values) {
  if (count < 5) return std::fputs("usage: fuzz_NAME SECONDS SEED CRASH_FOLDER CORPUS...\n", stderr), 2;
  const double seconds = std::atof(values[1]);
  Draw draw(std::strtoull(values[2], nullptr, 10));
  std::vector<std::string> corpus;
  for (int i = 4; i < count; ++i)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(values[i]))
      if (entry.is_regular_file()) {
        std::ifstream in(entry.path(), std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      }
  if (corpus.empty()) return std::fputs("the corpus is empty\n", stderr), 2;
  crash_file = std::string(values[3]) + "/crash-" + values[2];
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGALRM}) std::signal(signal, keep_and_end);
  __sanitizer_set_death_callback(keep);   // sanitizers end the program without a signal
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  long runs = 0;
  double slowest = 0;
  while (elapsed() < seconds) {
    now = runs < static_cast<long>(corpus.size()) ? corpus[static_cast<std::size_t>(runs)] : mutated(corpus, draw);
    const double from = elapsed();
    ::alarm(10);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(now.data()), now.size());
    ::alarm(0);
    slowest = std::max(slowest, elapsed() - from);
    ++runs;
  }
  std::printf("%ld runs in %.0f s, the slowest %.3f s\n", runs, elapsed(), slowest);
  return 0;
}
