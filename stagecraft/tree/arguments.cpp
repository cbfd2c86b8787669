#include "stagecraft/tree/arguments.h"

#include <unordered_set>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft {

Kwargs::Kwargs(std::initializer_list<Entry> entries) : Kwargs(std::vector<Entry>(entries)) {}

Kwargs::Kwargs(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::unordered_set<std::string_view> seen;
  for (const auto& [name, value] : entries_) {
    require<ArgumentError>(seen.insert(name).second, "kwargs: the name {} appears twice",
                           quote(name));
  }
}

const c10::IValue* Kwargs::find(std::string_view name) const {
  for (const auto& entry : entries_) {
    if (entry.first == name) return &entry.second;
  }
  return nullptr;
}

const c10::IValue& Kwargs::get(std::string_view name) const {
  if (const auto* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(quote(entry.first));
  throw ArgumentError(
      fmt::format("kwargs has no {}; it has {}", quote(name),
                  names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "))));
}

void Kwargs::set(std::string name, c10::IValue value) {
  for (auto& entry : entries_) {
    if (entry.first == name) {
      entry.second = std::move(value);
      return;
    }
  }
  entries_.emplace_back(std::move(name), std::move(value));
}

}  // namespace stagecraft
