#include "stagecraft/transport/fingerprint.h"

#include <algorithm>

#include <ATen/core/List.h>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/core/world_state.h"

namespace stagecraft {
namespace {

const std::string* find(const Fingerprint& fingerprint, const std::string& name) {
  const auto found = std::find_if(fingerprint.begin(), fingerprint.end(),
                                  [&](const auto& fact) { return fact.first == name; });
  return found == fingerprint.end() ? nullptr : &found->second;
}

std::string describe_entry(const std::vector<Fingerprint>& by_rank, const std::string& name) {
  std::vector<std::pair<std::string, std::vector<Rank>>> holders;
  for (std::size_t i = 0; i < by_rank.size(); ++i) {
    const std::string* const value = find(by_rank[i], name);
    const std::string text = value == nullptr ? "not given" : *value;
    auto known = std::find_if(holders.begin(), holders.end(),
                              [&](const auto& holder) { return holder.first == text; });
    if (known == holders.end()) {
      holders.emplace_back(text, std::vector<Rank>());
      known = holders.end() - 1;
    }
    known->second.push_back(Rank(static_cast<int32_t>(i)));
  }
  if (holders.size() < 2) return {};
  std::string text = name + " is ";
  for (const auto& [value, ranks] : holders) {
    if (&value != &holders.front().first) text += ", ";
    text += value + " on " + detail::name_ranks(ranks);
  }
  return text;
}

}  // namespace

std::string describe_mismatch(const std::vector<Fingerprint>& by_rank) {
  std::vector<std::string> names;
  for (const auto& fingerprint : by_rank) {
    for (const auto& [name, value] : fingerprint) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::string text;
  for (const auto& name : names) {
    const auto difference = describe_entry(by_rank, name);
    if (difference.empty()) continue;
    text += (text.empty() ? "" : "; ") + difference;
  }
  return text;
}

void handshake(Transport& transport, const Fingerprint& fingerprint, Deadline deadline) {
  c10::List<std::string> mine;
  for (const auto& [name, value] : fingerprint) {
    mine.push_back(name);
    mine.push_back(value);
  }
  std::vector<Fingerprint> by_rank;
  for (const auto& theirs : transport.all_gather(mine, deadline)) {
    Fingerprint read;
    const auto texts = theirs.toListRef();
    for (std::size_t i = 0; i + 1 < texts.size(); i += 2) {
      read.emplace_back(texts[i].toStringRef(), texts[i + 1].toStringRef());
    }
    by_rank.push_back(std::move(read));
  }
  detail::require_agreement(describe_mismatch(by_rank));
}

void detail::require_agreement(const std::string& mismatch) {
  if (!mismatch.empty()) throw MetadataError("the ranks do not agree: " + mismatch);
}

}  // namespace stagecraft
