#pragma once

#include "stagecraft/base/error.h"

namespace stagecraft::cli {

/// Exit statuses of the program.
constexpr int kGood = 0;
constexpr int kBadSchedule = 1;
/// For programs that run pipelines: a run failed.
constexpr int kFailed = 1;
/// The command could not be carried out: bad usage, a file that cannot be read or written, no
/// memory.
constexpr int kBadUsage = 2;
/// Training was done, but its last checkpoint could not be written.
constexpr int kNotSaved = 3;

/// Ends the program with kBadSchedule; the message is the line on standard error.
class BadSchedule : public Error {
 public:
  using Error::Error;
};

/// Likewise with kBadUsage.
class BadUsage : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft::cli
