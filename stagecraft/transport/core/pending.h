#pragma once

#include <memory>

namespace stagecraft {

/// A send or receive that was posted. Belongs to the rank that posted it; may outlive its
/// transport, which then has let it go.
class Pending {
 public:
  Pending() = default;
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  /// Whether a wait would return at once, or throw.
  virtual bool is_done() const = 0;
};
/// How a posted send or receive is held.
using PendingPtr = std::shared_ptr<Pending>;

}  // namespace stagecraft
