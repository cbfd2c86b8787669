#include "stagecraft/base/error.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace stagecraft {
namespace {

std::string stage_message(const StageError::Place& place, const std::exception_ptr& cause) {
  std::string text = fmt::format("rank {}", place.rank.value());
  if (place.stage.value() >= 0) text += fmt::format(", stage {}", place.stage.value());
  if (place.microbatch.value() >= 0) {
    text += fmt::format(", microbatch {}", place.microbatch.value());
  }
  if (!place.action.empty()) text += fmt::format(", action {}", place.action);
  return text + ": " + describe(cause);
}

// A message that begins with "rank 4" itself, as those of StageError do, is not changed.
std::string peer_message(const std::string& message, Rank peer) {
  const auto name = fmt::format("rank {}", peer.value());
  const bool named = message.starts_with(name) && message.size() > name.size() &&
                     (message[name.size()] < '0' || message[name.size()] > '9');
  return named ? message : name + ": " + message;
}

}  // namespace

std::string describe(const std::exception_ptr& error) {
  if (!error) return "unknown cause";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    const std::string_view message = known.what();
    return std::string(message.substr(0, message.find("\nException raised from ")));
  } catch (...) {
    return "unknown exception (not derived from std::exception)";
  }
}

ParseError::ParseError(const std::string& message, std::size_t line, std::size_t column)
    : Error(fmt::format("line {}, column {}: {}", line, column, message)),
      line_(line),
      column_(column) {}

ScheduleError::ScheduleError(const std::string& message, std::vector<std::string> actions)
    : Error(message), actions_(std::move(actions)) {}

StageError::StageError(Place place, std::exception_ptr cause)
    : Error(stage_message(place, cause)), place_(std::move(place)), cause_(std::move(cause)) {}

PeerError::PeerError(const std::string& message, Rank peer, std::exception_ptr cause)
    : Error(peer_message(message, peer)), peer_(peer), cause_(std::move(cause)) {}

}  // namespace stagecraft
