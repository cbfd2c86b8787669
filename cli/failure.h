#pragma once

#include "stagecraft/base/error.h"

namespace stagecraft::cli {

/// Exit statuses of the program.
constexpr int kGood = 0;
constexpr int kBadSchedule = 1;
/// For programs that run pipelines: a run failed.
constexpr int kFailed = 1;
/// The command could not be executed: bad usage, a file that cannot be read or written, not enough
/// memory.
constexpr int kBadUsage = 2;
/// Training was done, but its last checkpoint could not be written.
constexpr int kNotSaved = 3;

/// Ends the program with kBadSchedule and prints the message as a line on standard error.
class BadSchedule : public Error {
 public:
  using Error::Error;
};

/// Ends the program with kBadUsage and prints the message as a line on standard error.
class BadUsage : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft::cli
