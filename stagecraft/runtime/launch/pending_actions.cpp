#include "stagecraft/runtime/launch/pending_actions.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace stagecraft::detail {

namespace {

constexpr std::size_t kNamedActions = 16;

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<PendingActions>> all;
};

Registry& registry() {
  static Registry one;
  return one;
}

// A device without an index is the current one.
bool is_same_device(c10::Device a, c10::Device b) {
  return a.type() == b.type() && (a.index() == b.index() || !a.has_index() || !b.has_index());
}

}  // namespace

std::shared_ptr<PendingActions> PendingActions::make(Rank rank, c10::Device device) {
  std::shared_ptr<PendingActions> made(new PendingActions(rank, device));
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.all, [](const auto& each) { return each.expired(); });
  known.all.push_back(made);
  return made;
}

void PendingActions::launched(Action action) {
  const std::lock_guard lock(mutex_);
  current_.push_back(action);
}

void PendingActions::complete(std::size_t count) {
  const std::lock_guard lock(mutex_);
  if (count > 0) earlier_.clear();
  while (completed_ < count && !current_.empty()) {
    current_.pop_front();
    ++completed_;
  }
}

void PendingActions::start() {
  const std::lock_guard lock(mutex_);
  if (!current_.empty()) earlier_ = std::move(current_);
  current_.clear();
  completed_ = 0;
}

std::string PendingActions::text() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const Action action : earlier_) names.push_back(to_string(action) + " of the step before");
  for (const Action action : current_) names.push_back(to_string(action));
  if (names.empty()) return {};
  std::string text = fmt::format("rank {}: ", rank_.value());
  const std::size_t first = names.size() > kNamedActions ? names.size() - kNamedActions : 0;
  if (first > 0) text += "..., ";
  for (std::size_t i = first; i < names.size(); ++i) {
    text += (i == first ? "" : ", ") + names[i];
  }
  return text;
}

std::string PendingActions::describe(c10::Device device) {
  std::vector<std::shared_ptr<PendingActions>> all;
  {
    Registry& known = registry();
    const std::lock_guard lock(known.mutex);
    for (const auto& each : known.all) {
      if (auto one = each.lock(); one && is_same_device(one->device_, device)) {
        all.push_back(std::move(one));
      }
    }
  }
  std::ranges::sort(all, {}, [](const auto& one) { return one->rank_; });
  std::string text;
  for (const auto& one : all) {
    const std::string own = one->text();
    if (!own.empty()) text += (text.empty() ? "" : "; ") + own;
  }
  return text;
}

}  // namespace stagecraft::detail
