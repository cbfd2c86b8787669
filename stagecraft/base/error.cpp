#include "stagecraft/base/error.h"

#include <utility>

#include <fmt/format.h>

namespace stagecraft {
namespace {

std::string message_of(const std::exception_ptr& cause) {
  if (!cause) return "unknown cause";
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

std::string stage_message(const StageError::Place& place, const std::exception_ptr& cause) {
  return fmt::format("rank {}, stage {}, microbatch {}, action {}: {}", place.rank.value(),
                     place.stage.value(), place.microbatch.value(), place.action,
                     message_of(cause));
}

}  // namespace

ParseError::ParseError(const std::string& message, std::size_t line, std::size_t column)
    : Error(fmt::format("line {}, column {}: {}", line, column, message)),
      line_(line),
      column_(column) {}

ScheduleError::ScheduleError(const std::string& message, std::vector<std::string> actions)
    : Error(message), actions_(std::move(actions)) {}

StageError::StageError(Place place, std::exception_ptr cause)
    : Error(stage_message(place, cause)), place_(std::move(place)), cause_(std::move(cause)) {}

PeerError::PeerError(const std::string& message, Rank peer)
    : Error(fmt::format("rank {}: {}", peer.value(), message)), peer_(peer) {}

}  // namespace stagecraft
