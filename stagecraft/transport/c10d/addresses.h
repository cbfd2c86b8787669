#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/base/deadline.h"

namespace stagecraft::detail {

/// A socket of the system, closed at the end.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

/// Whether `host` names this machine's loopback. ArgumentError for a host that is not known.
bool is_loopback(const std::string& host);
/// Whether the socket is bound to it.
bool is_on_loopback(int fd);
/// A socket that listens there; port 0: any. ArgumentError when it cannot.
Socket listen_on(const std::string& address, uint16_t port);
/// The port that it listens on.
uint16_t port_of(const Socket& socket);
/// Whether something listens there by the deadline.
bool wait_for_listener(const std::string& host, uint16_t port, Deadline deadline);
/// The address of this machine from which it reaches `host`.
std::string address_towards(const std::string& host);

}  // namespace stagecraft::detail
