#include "stagecraft/transport/gloo/addresses.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {
namespace {

sockaddr_in resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int problem = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (problem != 0 || found == nullptr) {
    throw ArgumentError(fmt::format("unknown host \"{}\": {}", host, gai_strerror(problem)));
  }
  sockaddr_in address{};
  std::memcpy(&address, found->ai_addr, sizeof(address));
  freeaddrinfo(found);
  return address;
}

sockaddr_in name_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

bool is_loopback_address(const sockaddr_in& address) {
  return address.sin_family == AF_INET && (ntohl(address.sin_addr.s_addr) >> 24U) == 127;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int Socket::release() {
  return std::exchange(fd_, -1);
}

bool is_loopback(const std::string& host) {
  return is_loopback_address(resolve(host));
}

bool is_on_loopback(int fd) {
  return is_loopback_address(name_of(fd));
}

Socket listen_on(const std::string& address, uint16_t port) {
  sockaddr_in where = resolve(address);
  where.sin_port = htons(port);
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  // Connections of an earlier listener that are in TIME_WAIT (60 s on Linux) would otherwise block
  // the port.
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listens =
      listener.get() >= 0 &&
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0 &&
      listen(listener.get(), SOMAXCONN) == 0;
  if (!listens) {
    throw ArgumentError(
        fmt::format("cannot listen on {}:{}: {}", address, port, std::strerror(errno)));
  }
  return listener;
}

uint16_t port_of(const Socket& socket) {
  return ntohs(name_of(socket.get()).sin_port);
}

bool wait_for_listener(const std::string& host, uint16_t port, Deadline deadline) {
  sockaddr_in there = resolve(host);
  there.sin_port = htons(port);
  for (;;) {
    // A new socket for each attempt: a socket whose connect has failed is in no defined state. Not
    // blocking, because a connect to a host that does not answer takes minutes.
    const Socket probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int answer =
        connect(probe.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there));
    if (answer == 0) return true;
    if (errno == EINPROGRESS) {
      pollfd entry{probe.get(), POLLOUT, 0};
      // poll takes an int. After a minute the loop tries again.
      const auto left = std::clamp(
          std::chrono::ceil<std::chrono::milliseconds>(deadline.at() - Deadline::Clock::now()),
          std::chrono::milliseconds(0), std::chrono::milliseconds(60'000));
      int problem = 0;
      socklen_t size = sizeof(problem);
      if (poll(&entry, 1, static_cast<int>(left.count())) == 1 &&
          getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &problem, &size) == 0 && problem == 0) {
        return true;
      }
    }
    if (deadline.has_passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::string address_towards(const std::string& host) {
  sockaddr_in there = resolve(host);
  there.sin_port = htons(9);
  // Nothing is sent: connecting a datagram socket only looks up the route.
  const Socket probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) != 0) {
    throw ArgumentError(fmt::format("no route to {}: {}", host, std::strerror(errno)));
  }
  const sockaddr_in here = name_of(probe.get());
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &here.sin_addr, text.data(), text.size());
  return text.data();
}

}  // namespace stagecraft::detail
