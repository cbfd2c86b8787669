#include "stagecraft/transport/core/rendezvous.h"

#include <algorithm>

#include <fmt/format.h>

namespace stagecraft::detail {

std::string describe_difference(const std::vector<std::string>& calls) {
  std::vector<std::pair<std::string, std::vector<Rank>>> callers;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto known = std::find_if(callers.begin(), callers.end(),
                                    [&](const auto& caller) { return caller.first == calls[i]; });
    auto& ranks = known == callers.end()
                      ? callers.emplace_back(calls[i], std::vector<Rank>()).second
                      : known->second;
    ranks.push_back(Rank(static_cast<int32_t>(i)));
  }
  if (callers.size() < 2) return {};
  std::string text;
  for (const auto& [call, ranks] : callers) {
    text += fmt::format("{}{} called {}", text.empty() ? "" : ", ", name_ranks(ranks), call);
  }
  return text;
}

}  // namespace stagecraft::detail
