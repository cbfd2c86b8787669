#pragma once

#include <memory>

namespace stagecraft {

/// A posted send or receive. It belongs to the rank that posted it, and may outlive the transport.
class Pending {
 public:
  Pending() = default;
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  /// Whether a wait would return at once, or throw.
  virtual bool is_done() const = 0;
};
/// Holds a posted send or receive.
using PendingPtr = std::shared_ptr<Pending>;

}  // namespace stagecraft
