#include <charconv>
#include <set>
#include <string>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/sim/cost_keys.h"

namespace stagecraft {

std::string_view canonical_cost_key(std::string_view key) {
  if (key == "B") return "I";
  if (key == "MB") return "MI";
  return key;
}

std::string_view cost_key_list() {
  return "F, I (or B), W, FULL, C, BW, BYTES, MF, MI (or MB), MW, MS, WEIGHTS, G, MG, CAP, OVERLAP";
}

bool set_stage_cost(StageCost& cost, std::string_view key, double value) {
  key = canonical_cost_key(key);
  if (key == "F") {
    cost.forward = value;
  } else if (key == "I") {
    cost.backward_input = value;
  } else if (key == "W") {
    cost.backward_weight = value;
  } else if (key == "FULL") {
    cost.backward = value;
  } else if (key == "MF") {
    cost.memory_forward = value;
  } else if (key == "MI") {
    cost.memory_freed_by_input = value;
  } else if (key == "MW") {
    cost.memory_freed_by_weight = value;
  } else if (key == "MS") {
    cost.memory_sent = value;
  } else {
    return false;
  }
  return true;
}

bool set_link_cost(LinkCost& cost, std::string_view key, double value) {
  if (key == "C") {
    cost.latency = value;
  } else if (key == "BW") {
    cost.bandwidth = value;
  } else {
    return false;
  }
  return true;
}

bool set_cost(CostModel& costs, std::string_view key, double value) {
  if (set_stage_cost(costs.stage, key, value) || set_link_cost(costs.link, key, value)) return true;
  if (key == "BYTES") {
    costs.output_bytes = {value};
  } else if (key == "WEIGHTS") {
    costs.weights = {value};
  } else if (key == "G") {
    costs.gather = {value};
  } else if (key == "MG") {
    costs.gathered = {value};
  } else if (key == "CAP") {
    costs.memory_cap = value;
  } else if (key == "OVERLAP") {
    costs.overlap = value;
  } else {
    return false;
  }
  return true;
}

CostModel parse_costs(std::string_view text) {
  CostModel costs;
  std::set<std::string> seen;
  std::size_t at = 0;
  const auto fail = [&](const std::string& message) { throw ParseError(message, 1, at + 1); };
  while (true) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view entry = text.substr(at, end - at);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      fail(fmt::format("expected KEY=NUMBER, got {}", quote(entry)));
    }
    const std::string_view key = entry.substr(0, equals);
    const std::string_view number = entry.substr(equals + 1);
    double value = 0;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || rest != number.data() + number.size() || number.empty()) {
      at += equals + 1;
      fail(fmt::format("expected a number for {}, got {}", key, quote(number)));
    }
    if (!seen.insert(std::string(canonical_cost_key(key))).second) {
      fail(fmt::format("{} is given twice", canonical_cost_key(key)));
    }
    if (!set_cost(costs, key, value)) {
      fail(fmt::format("there is no cost {}; there are {}", quote(key), cost_key_list()));
    }
    if (end == text.size()) return costs;
    at = end + 1;
  }
}

}  // namespace stagecraft
