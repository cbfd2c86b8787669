#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "stagecraft/base/error.h"

namespace stagecraft {

/// A device had no memory left for an action. It is the cause() of a StageError. Afterwards the
/// step is undone, and a step that needs less memory works. A collective that has no memory for a
/// small value of a different process throws it itself.
class OutOfMemoryError : public Error {
 public:
  /// `asked` and `free` are in bytes; -1: not known.
  OutOfMemoryError(const std::string& message, int64_t asked, int64_t free)
      : Error(message), asked_(asked), free_(free) {}

  int64_t asked() const { return asked_; }
  int64_t free() const { return free_; }

 private:
  int64_t asked_;
  int64_t free_;
};

/// A device reports the error of a kernel that was launched earlier, or is lost. It is the cause()
/// of a StageError. The process cannot use the device any more.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft
