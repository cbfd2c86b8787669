#include "stagecraft/transport/wire/meetings.h"

#include <algorithm>
#include <utility>

namespace stagecraft::detail {

std::optional<std::vector<Participant>> Meetings::come(Rank rank, Participant participant) {
  came_[rank.position()] = std::move(participant);
  const bool all = std::all_of(came_.begin(), came_.end(), [](const auto& c) { return !!c; });
  if (!all) return std::nullopt;
  std::vector<Participant> met;
  for (auto& place : came_) met.push_back(std::move(*place));
  clear();
  return met;
}

std::optional<std::vector<Rank>> Meetings::withdraw(Rank rank, uint64_t attempt) {
  auto& place = came_[rank.position()];
  // If all ranks have met, kMet is on its way to the rank, and an answer would contradict kMet.
  if (!place || place->attempt != attempt) return std::nullopt;
  std::vector<Rank> missing;
  for (std::size_t i = 0; i < came_.size(); ++i) {
    if (!came_[i]) missing.push_back(Rank(static_cast<int32_t>(i)));
  }
  place.reset();
  return missing;
}

void Meetings::clear() {
  for (auto& place : came_) place.reset();
}

}  // namespace stagecraft::detail
