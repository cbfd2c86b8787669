#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "stagecraft/graph/names.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/graph/verify_parts.h"

namespace stagecraft::detail {

void check_sizes(const GraphParts& parts) {
  check(parts.sizes.size() <= SizeExpr::kMaxSizes, "expected at most {} sizes, got {}",
        SizeExpr::kMaxSizes, parts.sizes.size());
  std::unordered_set<std::string> names;
  for (const GraphSize& size : parts.sizes) {
    check(is_size_name(size.name), "'{}' is not a valid name for a size", size.name);
    check(names.insert(size.name).second, "two sizes are named {}", size.name);
    const bool follows = size.rule || size.measured;
    const bool is_least = size.least >= 0 || parts.is_exported;
    check(follows || (is_least && size.example >= size.least),
          "size {}: the example is {}, expected at least {}", size.name, size.example, size.least);
    check(follows || size.greatest >= size.example,
          "size {}: the example is {}, expected at most {}", size.name, size.example,
          size.greatest);
    check(!size.rule || !size.measured, "size {}: it has a rule and is measured", size.name);
    // `names` already contains this size, so one bit less.
    const SizeSet before = (SizeSet{1} << names.size() >> 1) - 1;
    check(!size.rule || (size.rule->sizes() & ~before) == 0,
          "size {}: it follows from a size that does not come before it", size.name);
  }
  const SizeSet all = (SizeSet{1} << parts.sizes.size()) - 1;
  for (const GraphGuard& guard : parts.guards) {
    check((guard.holds.sizes() & ~all) == 0, "a guard has a size that the graph lacks");
  }
  names.clear();
  for (const GraphValue& value : parts.values) {
    check(is_name(value.name), "'{}' is not a valid name for a value", value.name);
    check(names.insert(value.name).second, "two values are named %{}", value.name);
    // A shift of 32 bits by 32 or more is undefined.
    check(value.shape.size() >= 32 || value.open_dims >> value.shape.size() == 0,
          "%{} has an open dimension beyond its {}", value.name, value.shape.size());
    for (const SizeExpr& size : value.shape) {
      check((size.sizes() & ~all) == 0, "%{} has a size that the graph lacks", value.name);
    }
  }
}

void check_known_sizes(const GraphParts& parts) {
  SizeSet known = known_sizes(parts);
  auto check_size = [&](const SizeExpr& size, std::string_view where) {
    const SizeSet open = size.sizes() & ~known;
    check(open == 0, "{}: the inputs do not determine the size {}", where,
          open == 0 ? std::string()
                    : parts.sizes[static_cast<std::size_t>(std::countr_zero(open))].name);
  };
  // A measured size is known after the node that makes its value.
  std::unordered_map<ValueId, SizeSet> measured;
  for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
    const auto& how = parts.sizes[i].measured;
    if (!how) continue;
    check(parts.values.contains(how->value) && how->dim >= -1 &&
              how->dim < static_cast<int32_t>(parts.values[how->value].shape.size()),
          "size {}: it is measured at a value that does not exist", parts.sizes[i].name);
    measured[how->value] |= SizeSet{1} << i;
  }
  auto refuse = [&](ValueId value) {
    check(!measured.contains(value), "a size is measured at %{}, which no node makes",
          parts.values[value].name);
  };
  for (const GraphState& state : parts.states) refuse(state.value);
  for (const Argument& input : parts.inputs) for_each_value(input, refuse);
  auto learn = [&](ValueId value) {
    const auto found = measured.find(value);
    if (found == measured.end()) return;
    known = with_rules(parts, known | found->second);
  };
  for (const GraphNode& node : parts.nodes) {
    for (const Argument& argument : node.arguments) {
      for_each_size(argument, [&](const SizeExpr& size) { check_size(size, node.name); });
    }
    for (const Argument& result : node.results) for_each_value(result, learn);
  }
  for (const Argument& output : parts.outputs) {
    for_each_size(output, [&](const SizeExpr& size) { check_size(size, "return"); });
  }
}

}  // namespace stagecraft::detail
