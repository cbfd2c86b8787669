// How a step of the executor fails: which error it throws, what it tells the other ranks and the
// user, and what it releases.

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/device_error.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/executor.h"
#include "stagecraft/schedule/slot.h"

namespace stagecraft {

namespace {

// A rank sends its progress every 200 ms. One that was silent for longer may be gone.
constexpr std::chrono::milliseconds kHeardLately(600);

}  // namespace

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
  const std::exception_ptr cause = explain(thrown);
  const StageError::Place place = place_of(std::exchange(current_, Action()));
  const bool is_aborted = transport_.abort_reason() != nullptr;
  const bool was_waiting = router_.is_waiting() || std::exchange(is_exchanging_, false);
  try {
    std::rethrow_exception(cause);
  } catch (const PeerError&) {
    if (is_aborted) {
      announce_lost();
      release();
      throw;
    }
    abort_as(StageError(place, cause));
  } catch (const TimeoutError& error) {
    if (!was_waiting) abort_as(StageError(place, cause));
    const TimeoutError named(fmt::format("rank {}, {}: {}", place.rank.value(),
                                         place.action.empty() ? "end of the step" : place.action,
                                         error.what()));
    announce_and_abort(named);
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

// A failure of the device in our words; any other as it is.
std::exception_ptr Executor::explain(const std::exception_ptr& cause) {
  if (!device_ || plan_.is_captured || !device_failure_.empty()) return cause;
  if (auto error = detail::explain_out_of_memory(cause, device_.get(), in_flight_)) {
    is_out_of_memory_ = true;
    return error;
  }
  if (auto error = detail::explain_device_error(cause, *device_, stages_.front().device())) {
    device_failure_ = describe(error);
    return error;
  }
  return cause;
}

void Executor::rethrow_explained() {
  const std::exception_ptr cause = std::current_exception();
  try {
    throw;
  } catch (const StageError&) {
    throw;
  } catch (...) {
    const std::exception_ptr explained = explain(cause);
    if (explained == cause) throw;
    throw StageError(place_of(Action()), explained);
  }
}

// Reads the positions of the ranks before the abort changes them. If several ranks miss a deadline
// at once, only the one whose abort came first prints them.
void Executor::announce_and_abort(const TimeoutError& error) {
  const std::string table = progress_table(transport_.progress());
  const std::exception_ptr cause = std::make_exception_ptr(error);
  transport_.abort({transport_.rank(), error.what(), cause});
  const auto reason = transport_.abort_reason();
  if (reason && reason->cause == cause) announce(fmt::format("{}\n{}", error.what(), table));
}

void Executor::announce_lost() {
  const auto reason = transport_.abort_reason();
  if (!reason || !reason->is_lost || reason == announced_) return;
  announced_ = reason;
  std::vector<HeardProgress> ranks = transport_.progress();
  auto& lost = ranks[reason->rank.position()];
  lost.is_lost = true;
  // Other ranks of the lost rank's machine may be silent, too. They do not print.
  const auto silence = std::max(kHeardLately, lost.age / 2);
  const auto teller = std::find_if(ranks.begin(), ranks.end(), [&](const auto& rank) {
    return !rank.is_lost && rank.age < silence;
  });
  if (teller - ranks.begin() != transport_.rank().value()) return;
  announce(fmt::format("{}\n{}", reason->message, progress_table(ranks)));
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
  timeline_.clear();
  progress_->stop();
  router_.clear();
  for (Stage& stage : stages_) stage.reset();
  outputs_.clear();
  losses_.clear();
  added_losses_.clear();
}

void Executor::abandon() {
  release();
  // What the failed step has left in the cache may be in pieces that are too small.
  if (std::exchange(is_out_of_memory_, false)) device_->release_unused();
  ties_.abandon();
  reducer_->abandon();
  gathers_.abandon();
  for (at::Tensor& parameter : had_no_grad_) parameter.mutable_grad().reset();
  had_no_grad_.clear();
}

}  // namespace stagecraft
