#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/base/deadline.h"

namespace stagecraft::detail {

/// A socket, closed by the destructor.
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

/// Whether `host` is a loopback address. ArgumentError for an unknown host.
bool is_loopback(const std::string& host);
/// Whether the socket is bound to a loopback address.
bool is_on_loopback(int fd);
/// A socket that listens at the address; port 0 means any free port. ArgumentError if that fails.
Socket listen_on(const std::string& address, uint16_t port);
/// The port of a listening socket.
uint16_t port_of(const Socket& socket);
/// Waits until a process listens at this host and port; false at the deadline.
bool wait_for_listener(const std::string& host, uint16_t port, Deadline deadline);
/// The address from which this machine reaches `host`.
std::string address_towards(const std::string& host);

}  // namespace stagecraft::detail
