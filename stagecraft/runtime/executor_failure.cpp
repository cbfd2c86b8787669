// How a step of the executor fails: which error it throws, which reason it sends to the other
// ranks, and what it releases.

#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/executor.h"
#include "stagecraft/schedule/slot.h"

namespace stagecraft {

// -1 for a stage or microbatch that the action does not have. An overlap is named with its parts.
StageError::Place Executor::place_of(Action action) const {
  StageError::Place place{transport_.rank(), StageId(-1), MicrobatchId(-1), to_string(action)};
  if (action.is_overlap()) {
    place.action = to_string(Slot(slot_, 0, 0));
  } else if (!action.is_idle()) {
    place.stage = action.stage();
    if (has_microbatch(action.type())) place.microbatch = action.microbatch();
  }
  return place;
}

// A PeerError or TimeoutError may also come from user code. It is a failure of a peer only if the
// world is aborted, and a missed deadline only if this rank was waiting.
void Executor::fail(const std::exception_ptr& thrown) {
  const std::exception_ptr cause = device_.explain(thrown);
  const StageError::Place place = place_of(std::exchange(current_, Action()));
  const bool is_aborted = transport_.abort_reason() != nullptr;
  const bool was_waiting = exchange_.take_waiting() || router_.is_waiting();
  try {
    std::rethrow_exception(cause);
  } catch (const PeerError&) {
    if (is_aborted) {
      announcer_.announce_lost();
      release();
      throw;
    }
    abort_as(StageError(place, cause));
  } catch (const TimeoutError& error) {
    if (!was_waiting) abort_as(StageError(place, cause));
    const TimeoutError named(fmt::format("rank {}, {}: {}", place.rank.value(),
                                         place.action.empty() ? "end of the step" : place.action,
                                         error.what()));
    announcer_.announce_and_abort(named);
    release();
    throw named;
  } catch (const InterruptedError& error) {
    const std::string where = place.action.empty() ? "" : fmt::format(" in {}", place.action);
    transport_.abort({transport_.rank(),
                      fmt::format("rank {}: {}{}", place.rank.value(), error.what(), where),
                      std::current_exception()});
    release();
    throw;
  } catch (...) {
    abort_as(StageError(place, cause));
  }
}

void Executor::rethrow_explained() {
  const std::exception_ptr cause = std::current_exception();
  try {
    throw;
  } catch (const StageError&) {
    throw;
  } catch (...) {
    const std::exception_ptr explained = device_.explain(cause);
    if (explained == cause) throw;
    throw StageError(place_of(Action()), explained);
  }
}

template <typename E>
void Executor::abort_as(const E& error) {
  // Abort first: the other ranks wait.
  transport_.abort({transport_.rank(), error.what(), std::make_exception_ptr(error)});
  release();
  throw error;
}

void Executor::release() {
  recorder_.stop();
  device_.release();
  progress_->stop();
  router_.clear();
  for (Stage& stage : stages_) stage.reset();
  actions_.results() = {};
}

void Executor::abandon() {
  release();
  device_.abandon();
  exchange_.abandon();
}

}  // namespace stagecraft
