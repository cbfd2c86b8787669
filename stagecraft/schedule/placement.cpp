#include "stagecraft/schedule/placement.h"

#include <numeric>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {
namespace {

void check_counts(int32_t ranks, int32_t stages) {
  require<ArgumentError>(ranks >= 1, "a placement needs at least 1 rank, got {}", ranks);
  require<ArgumentError>(stages >= ranks,
                         "{} ranks need at least {} stages, one each, got {} stages", ranks, ranks,
                         stages);
  require<ArgumentError>(stages <= Action::kMaxStage + 1, "at most {} stages, got {}",
                         Action::kMaxStage + 1, stages);
}

}  // namespace

Placement Placement::loop(int32_t ranks, int32_t stages) {
  check_counts(ranks, stages);
  IndexedVector<StageId, Rank> rank_of(stages);
  for (StageId s(0); rank_of.contains(s); ++s) rank_of[s] = Rank(s.value() % ranks);
  return {std::move(rank_of), ranks};
}

Placement Placement::v(int32_t ranks, int32_t stages) {
  check_counts(ranks, stages);
  if (stages % ranks != 0) {
    const int32_t below = stages / ranks * ranks;
    throw ArgumentError(fmt::format(
        "a v placement needs a multiple of {} stages for {} ranks, got {}; nearest: {} or {}",
        ranks, ranks, stages, below, below + ranks));
  }
  IndexedVector<StageId, Rank> rank_of(stages);
  for (StageId s(0); rank_of.contains(s); ++s) {
    const int32_t step = s.value() % ranks;
    rank_of[s] = Rank((s.value() / ranks) % 2 == 0 ? step : ranks - 1 - step);
  }
  return {std::move(rank_of), ranks};
}

Placement Placement::from_style(std::string_view style, int32_t ranks, int32_t stages) {
  if (style == "loop") return loop(ranks, stages);
  if (style == "v") return v(ranks, stages);
  throw ArgumentError(fmt::format("a placement's style is loop or v, got '{}'", style));
}

Placement Placement::of(std::vector<std::optional<Rank>> stage_to_rank, int32_t ranks) {
  require<ArgumentError>(ranks >= 1, "a placement needs at least 1 rank, got {}", ranks);
  require<ArgumentError>(stage_to_rank.size() <= std::size_t{Action::kMaxStage} + 1,
                         "at most {} stages, got {}", Action::kMaxStage + 1, stage_to_rank.size());
  IndexedVector<StageId, Rank> rank_of;
  for (const std::optional<Rank> rank : stage_to_rank) {
    const StageId stage = rank_of.push_back(rank.value_or(kNowhere));
    require<ArgumentError>(!rank || (*rank >= Rank(0) && *rank < Rank(ranks)),
                           "stage {} is placed on rank {}, but there are {} ranks", stage.value(),
                           rank_of[stage].value(), ranks);
  }
  return {std::move(rank_of), ranks};
}

Placement::Placement(IndexedVector<StageId, Rank> rank_of, int32_t ranks)
    : rank_of_(std::move(rank_of)), first_(static_cast<std::size_t>(ranks) + 1, 0) {
  for (const Rank rank : rank_of_) {
    if (rank != kNowhere) ++first_[rank.value() + 1];
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  stages_.resize(static_cast<std::size_t>(first_.back()));
  std::vector<int32_t> next(first_.begin(), first_.end() - 1);
  for (StageId stage(0); rank_of_.contains(stage); ++stage) {
    const Rank rank = rank_of_[stage];
    if (rank != kNowhere) stages_[next[rank.value()]++] = stage;
  }
}

Rank Placement::get_rank(StageId stage) const {
  require<ArgumentError>(rank_of_.contains(stage), "there is no stage {}; there are {} stages",
                         stage.value(), num_stages());
  require<ArgumentError>(rank_of_[stage] != kNowhere, "no rank holds stage {}", stage.value());
  return rank_of_[stage];
}

std::optional<Rank> Placement::find_rank(StageId stage) const {
  if (!rank_of_.contains(stage) || rank_of_[stage] == kNowhere) return std::nullopt;
  return rank_of_[stage];
}

std::span<const StageId> Placement::stages(Rank rank) const {
  require<ArgumentError>(rank.value() >= 0 && rank.value() < num_ranks(),
                         "there is no rank {}; there are {} ranks", rank.value(), num_ranks());
  return std::span(stages_).subspan(first_[rank.value()],
                                    first_[rank.value() + 1] - first_[rank.value()]);
}

std::string to_string(const Placement& placement) {
  std::string text;
  for (const Rank rank : placement.ranks()) {
    if (!text.empty()) text += ' ';
    text += rank == Placement::kNowhere ? "-" : to_string(rank);
  }
  return text;
}

}  // namespace stagecraft
