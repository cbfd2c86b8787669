#include "stagecraft/transport/wire/meetings.h"

#include <algorithm>
#include <utility>

namespace stagecraft::detail {

std::optional<std::vector<Participant>> Meetings::come(Rank rank, Participant participant) {
  came_[rank] = std::move(participant);
  const bool all = std::all_of(came_.begin(), came_.end(), [](const auto& c) { return !!c; });
  if (!all) return std::nullopt;
  std::vector<Participant> met;
  for (auto& place : came_) met.push_back(std::move(*place));
  clear();
  return met;
}

std::optional<std::vector<Rank>> Meetings::withdraw(Rank rank, uint64_t attempt) {
  auto& place = came_[rank];
  // If all ranks have met, kMet is on its way to the rank, and an answer would contradict kMet.
  if (!place || place->attempt != attempt) return std::nullopt;
  std::vector<Rank> missing;
  for (Rank other(0); came_.contains(other); ++other) {
    if (!came_[other]) missing.push_back(other);
  }
  place.reset();
  return missing;
}

void Meetings::clear() {
  for (auto& place : came_) place.reset();
}

}  // namespace stagecraft::detail
