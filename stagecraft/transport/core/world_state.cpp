#include "stagecraft/transport/core/world_state.h"

#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {
namespace {

uint64_t next_number() {
  // A handle holds the number, not a pointer: a new world may have the address of an old one.
  static std::atomic<uint64_t> last{0};
  return ++last;
}

int32_t checked_size(int32_t ranks) {
  require<ArgumentError>(ranks >= 1, "a world needs at least one rank, got {}", ranks);
  return ranks;
}

}  // namespace

WorldState::WorldState(int32_t ranks) : number_(next_number()), left_(checked_size(ranks)) {}

void WorldState::require_rank(Rank rank, const char* where) const {
  require<ArgumentError>(rank.value() >= 0 && rank.value() < num_ranks(),
                         "{}: there is no rank {} among {} ranks", where, rank.value(),
                         num_ranks());
}

std::shared_ptr<const AbortReason> WorldState::reason() const {
  // One atomic read in the usual case: every post and every wait asks.
  if (!is_aborted()) return nullptr;
  const std::lock_guard lock(reason_mutex_);
  return reason_;
}

void WorldState::throw_if_aborted() const {
  if (const auto why = reason()) throw PeerError(why->message, why->rank, why->cause);
}

void WorldState::abort(AbortReason reason, const std::function<void()>& tell_all) {
  auto shared = std::make_shared<const AbortReason>(std::move(reason));
  const std::lock_guard changing(changing_);
  // Checked under `changing_`, so that exactly one reason is the first.
  if (is_aborted()) return;
  {
    const std::lock_guard lock(reason_mutex_);
    reason_ = std::move(shared);
  }
  // After the reason: a thread that sees the flag finds a reason.
  aborted_.store(true, std::memory_order_release);
  // Still under `changing_`: a recovery in between would make this abort end transfers of the new
  // epoch. After the flag: a thread that posts now either sees the flag or is seen by `tell_all`.
  tell_all();
}

std::shared_ptr<const AbortReason> WorldState::recover(const std::function<void()>& clear) {
  const std::lock_guard changing(changing_);
  // Before the flag is taken back: an aborted world refuses posts until then, so only old transfers
  // are cleared.
  clear();
  aborted_.store(false, std::memory_order_release);
  const std::lock_guard lock(reason_mutex_);
  // Returned, not destroyed here: it may hold an exception with objects of the user.
  return std::exchange(reason_, nullptr);
}

std::vector<Rank> WorldState::ranks_that_left() const {
  std::vector<Rank> ranks;
  for (Rank rank(0); rank.value() < num_ranks(); ++rank) {
    if (has_left(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void WorldState::leave(Rank rank) {
  // In this order: a thread that sees `anyone_left_` finds at least one rank in `left_`.
  left_[rank].store(true);
  anyone_left_.store(true);
}

std::string name_ranks(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += to_string(ranks[i]);
  }
  return text;
}

std::string describe_wait(Deadline::Clock::duration waited) {
  const double seconds = std::chrono::duration<double>(waited).count();
  return seconds < 1 ? fmt::format("{:.0f} ms", seconds * 1000) : fmt::format("{:.1f} s", seconds);
}

}  // namespace stagecraft::detail
