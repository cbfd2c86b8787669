#include "python/bindings/wait_watch.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "python/bindings/python_call.h"
#include "stagecraft/runtime/progress_mark.h"

namespace stagecraft::python {
namespace {

std::chrono::duration<double> wait_log_period() {
  const char* const given = std::getenv("STAGECRAFT_WAIT_LOG");
  return std::chrono::duration<double>(given == nullptr ? 30.0 : std::strtod(given, nullptr));
}

}  // namespace

WaitWatch::WaitWatch(const Transport* transport)
    : transport_(transport), period_(wait_log_period()), next_(Clock::now()) {
  if (period_.count() <= 0) transport_ = nullptr;
  next_ += std::chrono::duration_cast<Clock::duration>(period_);
}

void WaitWatch::operator()() {
  check_signals();
  if (transport_ != nullptr && Clock::now() >= next_) log_if_due();
}

void WaitWatch::log_if_due() {
  const std::vector<HeardProgress> ranks = transport_->progress();
  const auto& own = ranks[transport_->rank().position()].progress;
  // If the wait began later, the table is logged when the wait is that old.
  const auto waited = own ? own->waits : std::chrono::milliseconds(0);
  if (waited < 0.9 * period_) {
    next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(period_ - waited);
    return;
  }
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(period_);
  const std::string table = progress_table(ranks);
  with_gil([&] {
    py::module_::import("stagecraft.world")
        .attr("log_wait")(transport_->rank().value(), own->waits.count() / 1000, table);
  });
}

}  // namespace stagecraft::python
