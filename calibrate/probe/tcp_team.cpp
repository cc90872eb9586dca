// A star of TCP connections with rank 0 in the middle: a few numbers per sample, so nothing finer is needed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "calibrate/probe/device.h"
#include "calibrate/probe/team.h"

namespace rehearse::calibrate {
namespace {

[[noreturn]] void lost() { throw std::runtime_error("another process of this measurement has gone; its message says why"); }

/// A socket that sends and receives whole messages.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {
    const int one = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  Connection(Connection&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Connection& operator=(Connection&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~Connection() { if (socket_ >= 0) ::close(socket_); }

  void send(const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t n = ::send(socket_, at, size, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) lost();
      at += n;
      size -= static_cast<std::size_t>(n);
    }
  }
  void receive(void* data, std::size_t size) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t n = ::recv(socket_, at, size, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) lost();
      at += n;
      size -= static_cast<std::size_t>(n);
    }
  }
  void send_text(const std::string& text) {
    const std::uint64_t size = text.size();
    send(&size, sizeof size);
    send(text.data(), text.size());
  }
  std::string receive_text() {
    std::uint64_t size = 0;
    receive(&size, sizeof size);
    std::string text(size, '\0');
    receive(text.data(), size);
    return text;
  }

 private:
  int socket_;
};

class TcpTeam final : public Team {
 public:
  TcpTeam(const RankInfo& me, std::vector<Connection> others) : me_(me), others_(std::move(others)) {}
  int rank() const override { return me_.rank; }
  int size() const override { return me_.size; }

  std::vector<double> largest(const std::vector<double>& mine) override {
    std::vector<double> all = mine;
    const std::size_t bytes = mine.size() * sizeof(double);
    if (me_.rank != 0) {
      others_[0].send(mine.data(), bytes);
      others_[0].receive(all.data(), bytes);
      return all;
    }
    std::vector<double> theirs(mine.size());
    for (Connection& c : others_) {
      c.receive(theirs.data(), bytes);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], theirs[i]);
    }
    for (Connection& c : others_) c.send(all.data(), bytes);
    return all;
  }

  std::string from_first(const std::string& mine) override {
    if (me_.rank != 0) return others_[0].receive_text();
    for (Connection& c : others_) c.send_text(mine);
    return mine;
  }

 private:
  RankInfo me_;
  std::vector<Connection> others_;  // rank 0: the others in order; else: rank 0
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> own_addresses() {
  std::vector<std::string> out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0) continue;
      char text[INET_ADDRSTRLEN];
      const auto* address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      if (::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text) == nullptr) continue;
      // The loopback address comes last: it reaches us from our own node only.
      if ((i->ifa_flags & IFF_LOOPBACK) != 0) out.push_back(text);
      else out.insert(out.begin(), text);
    }
    ::freeifaddrs(list);
  }
  return out;
}

std::unique_ptr<Team> host(const RankInfo& me, const std::string& file, double deadline) {
  const int listening = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  if (listening < 0 || ::bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(listening, me.size) != 0 ||
      ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw NotPossible(std::string("cannot open a TCP port to meet the other processes: ") + std::strerror(errno));
  std::random_device random;
  const std::uint64_t token = (std::uint64_t{random()} << 32) | random();
  {
    // Only this user may read it; renamed into place so that nobody reads half of it.
    const std::string beside = file + ".part";
    ::unlink(beside.c_str());
    const int out = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    std::ostringstream text;
    text << ntohs(address.sin_port) << ' ' << token;
    for (const std::string& a : own_addresses()) text << ' ' << a;
    text << " end\n";
    const std::string bytes = text.str();
    const bool written = out >= 0 && ::write(out, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    if (out >= 0) ::close(out);
    if (!written || ::rename(beside.c_str(), file.c_str()) != 0) {
      ::close(listening);
      throw NotPossible("cannot write the meeting file " + file + ": " + std::strerror(errno));
    }
  }
  std::vector<std::optional<Connection>> seats(static_cast<std::size_t>(me.size));
  for (int missing = me.size - 1; missing > 0;) {
    pollfd waiting{listening, POLLIN, 0};
    const int milliseconds = static_cast<int>(std::max(0.0, deadline - now()) * 1000);
    const bool somebody = ::poll(&waiting, 1, milliseconds) > 0;
    if (!somebody && now() >= deadline) {
      ::close(listening);
      ::unlink(file.c_str());
      throw NotPossible(std::to_string(missing) + " of " + std::to_string(me.size) + " processes did not come to " + file);
    }
    if (!somebody) continue;  // milliseconds are rounded down
    const int socket = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    const timeval patience{5, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    Connection guest(socket);
    std::uint64_t hello[2] = {0, 0};
    try {
      guest.receive(hello, sizeof hello);
    } catch (const std::runtime_error&) {
      continue;  // somebody who is not of this measurement
    }
    if (hello[0] != token || hello[1] == 0 || hello[1] >= seats.size() || seats[hello[1]]) continue;
    const timeval forever{0, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
    guest.send(&token, sizeof token);
    seats[hello[1]] = std::move(guest);
    --missing;
  }
  ::close(listening);
  ::unlink(file.c_str());
  std::vector<Connection> others;
  for (std::size_t i = 1; i < seats.size(); ++i) others.push_back(std::move(*seats[i]));
  return std::make_unique<TcpTeam>(me, std::move(others));
}

/// A connection to one of rank 0's addresses that answers with the file's token; none when nobody does.
std::optional<Connection> knock(const std::string& text, const RankInfo& me) {
  std::istringstream in(text);
  std::uint16_t port = 0;
  std::uint64_t token = 0;
  in >> port >> token;
  for (std::string address; in >> address && address != "end";) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) return std::nullopt;
    Connection host(socket);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    if (::inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1) continue;
    if (::connect(socket, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 && errno != EINPROGRESS) continue;
    pollfd waiting{socket, POLLOUT, 0};
    int error = 1;
    socklen_t length = sizeof error;
    if (::poll(&waiting, 1, 2000) <= 0 || ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) continue;
    ::fcntl(socket, F_SETFL, 0);
    try {
      const std::uint64_t hello[2] = {token, static_cast<std::uint64_t>(me.rank)};
      host.send(hello, sizeof hello);
      std::uint64_t answer = 0;
      host.receive(&answer, sizeof answer);
      if (answer == token) return host;
    } catch (const std::runtime_error&) {
    }
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Team> meet_through_file(const RankInfo& me, const std::string& file, double patience_s) {
  const double deadline = now() + patience_s;
  if (me.rank == 0) return host(me, file, deadline);
  while (now() < deadline) {
    std::ifstream in(file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.ends_with(" end\n"))
      if (auto connection = knock(text, me)) {
        std::vector<Connection> others;
        others.push_back(std::move(*connection));
        return std::make_unique<TcpTeam>(me, std::move(others));
      }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw NotPossible("process " + std::to_string(me.rank) + " did not meet process 0 through " + file +
                    ": name a file that every node sees (--meet), and allow TCP between the nodes");
}

}  // namespace rehearse::calibrate
