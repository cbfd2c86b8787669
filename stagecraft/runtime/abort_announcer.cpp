#include "stagecraft/runtime/abort_announcer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/log.h"
#include "stagecraft/runtime/progress_mark.h"

namespace stagecraft {

namespace {

// A rank sends its progress every 200 ms. A rank that was silent for three periods may be lost.
constexpr std::chrono::milliseconds kHeardLately(600);

}  // namespace

// Reads the positions of the ranks before the abort changes them.
void AbortAnnouncer::announce_and_abort(const TimeoutError& error) {
  const std::string table = progress_table(transport_.progress());
  const std::exception_ptr cause = std::make_exception_ptr(error);
  transport_.abort({transport_.rank(), error.what(), cause});
  const auto reason = transport_.abort_reason();
  if (reason && reason->cause == cause) announce(fmt::format("{}\n{}", error.what(), table));
}

void AbortAnnouncer::announce_lost() {
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

}  // namespace stagecraft
