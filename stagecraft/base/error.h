#pragma once

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Every error that Stagecraft throws on purpose. The subclass says what the caller can do about
/// it; the message says what was expected, what came and where.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The message of an exception, without the stack trace that torch appends. "unknown cause" for
/// null, "unknown exception (not derived from std::exception)" for a type that has no message.
std::string describe(const std::exception_ptr& error);

/// An argument that the call cannot accept. The caller must pass a different one.
class ArgumentError : public Error {
 public:
  using Error::Error;
};

/// Values whose structure, shape, dtype or stride differs from the expected one.
class MetadataError : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read or written, is damaged, or has a different format.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Text that does not parse. `what()` starts with "line L, column C: ".
class ParseError : public Error {
 public:
  /// `line` and `column` count from 1; `column` counts bytes.
  ParseError(const std::string& message, std::size_t line, std::size_t column);

  std::size_t line() const { return line_; }
  std::size_t column() const { return column_; }

 private:
  std::size_t line_;
  std::size_t column_;
};

/// A schedule that cannot be executed.
class ScheduleError : public Error {
 public:
  /// `actions`: the text of each offending action, most telling first.
  ScheduleError(const std::string& message, std::vector<std::string> actions);

  const std::vector<std::string>& actions() const { return actions_; }

 private:
  std::vector<std::string> actions_;
};

/// User code or an operator failed inside a stage.
class StageError : public Error {
 public:
  /// Where the failure happened. `action` is the action's text in the schedule, such as "2F0". The
  /// message omits a stage or microbatch of -1, and an empty action.
  struct Place {
    Rank rank;
    StageId stage;
    MicrobatchId microbatch;
    std::string action;
  };

  /// `cause` may be null; otherwise its message is appended.
  StageError(Place place, std::exception_ptr cause);

  const Place& place() const { return place_; }
  /// Null when the failure was not an exception.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  Place place_;
  std::exception_ptr cause_;
};

/// A peer failed, left or could not be reached.
class PeerError : public Error {
 public:
  /// `what()` starts with the peer: "rank 4: " is put before a message that does not name it.
  /// `cause`: the peer's exception, if the peer is in this process.
  PeerError(const std::string& message, Rank peer, std::exception_ptr cause = nullptr);

  Rank peer() const { return peer_; }
  /// Null if the peer is in a different process, or did not fail with an exception.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  Rank peer_;
  std::exception_ptr cause_;
};

/// A wait reached its deadline.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

}  // namespace stagecraft
