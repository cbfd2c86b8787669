#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace stagecraft {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

/// What a process of its own came to.
struct ChildResult {
  bool is_done = false;         ///< it came to its end
  uint64_t step = 0;            ///< the number that it last wrote down
  std::string what;             ///< how it ended, or what it threw
  std::size_t peak_memory = 0;  ///< bytes that it had in memory at most
};

/// Notes where a child is: what it writes here is known when it has died.
class ChildNotes {
 public:
  virtual ~ChildNotes() = default;
  /// Begins a step, which must end within the seconds that run_bounded() was given.
  virtual void begin(uint64_t step) = 0;
};

/// Runs `body` in a process of its own, which may have `memory` bytes more than this one and
/// `seconds` for each step; a crash, a hang or an exception ends that process alone. A sanitizer
/// reserves more memory than any limit: there is none then.
ChildResult run_bounded(std::size_t memory, unsigned seconds,
                        const std::function<void(ChildNotes&)>& body);

}  // namespace stagecraft
