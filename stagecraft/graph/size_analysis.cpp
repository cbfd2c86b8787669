#include "stagecraft/graph/size_analysis.h"

#include <bit>

namespace stagecraft {

namespace {

/// Sizes with a rule, and sizes that are measured.
SizeSet sizes_that_follow(const GraphParts& parts) {
  SizeSet result = 0;
  for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
    if (parts.sizes[i].rule || parts.sizes[i].measured) result |= SizeSet{1} << i;
  }
  return result;
}

}  // namespace

std::vector<SizeStep> plan_sizes(const GraphParts& parts) {
  std::vector<SizeStep> steps;
  SizeSet known = 0;
  const SizeSet following = sizes_that_follow(parts);
  for (std::size_t leaf = 0; leaf < parts.inputs.size(); ++leaf) {
    const SizeExpr* size = parts.inputs[leaf].size();
    if (size == nullptr || (size->sizes() & ~known) == 0) continue;
    // First the inputs that are sizes: they need no other size to be known.
    steps.push_back({std::countr_zero(size->sizes()), leaf, SizeStep::kIsNumber});
    known |= size->sizes();
  }
  // Repeated, because a dimension with two unknown sizes is solvable after a later input has
  // determined one of them.
  for (bool is_found = true; is_found;) {
    is_found = false;
    for (std::size_t leaf = 0; leaf < parts.inputs.size(); ++leaf) {
      const ValueId* value = parts.inputs[leaf].value();
      if (value == nullptr) continue;
      const std::vector<SizeExpr>& shape = parts.values[*value].shape;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        const SizeSet open = shape[dim].sizes() & ~known;
        // Skip sizes with a rule: they are computed from other sizes, which a shape may not
        // contain.
        if (std::popcount(open) != 1 || (open & following) != 0) continue;
        steps.push_back({std::countr_zero(open), leaf, dim});
        known |= open;
        is_found = true;
      }
    }
  }
  return steps;
}

SizeSet with_rules(const GraphParts& parts, SizeSet known) {
  for (std::size_t i = 0; i < parts.sizes.size(); ++i) {
    const auto& rule = parts.sizes[i].rule;
    // One pass is enough: a rule reads earlier sizes only (check_sizes).
    if (rule && (rule->sizes() & ~known) == 0) known |= SizeSet{1} << i;
  }
  return known;
}

SizeSet read_sizes(const GraphParts& parts) {
  SizeSet read = 0;
  auto note = [&](const SizeExpr& size) { read |= size.sizes(); };
  for (const GraphNode& node : parts.nodes) {
    for (const Argument& argument : node.arguments) for_each_size(argument, note);
  }
  for (const Argument& output : parts.outputs) for_each_size(output, note);
  return read;
}

bool is_truth(const GraphParts& parts, const SizeExpr& expr) {
  if (expr.terms().size() != 1 || expr.terms().front().factor != 1) return false;
  if (std::popcount(expr.sizes()) != 1) return false;
  const auto& rule = parts.sizes[static_cast<std::size_t>(std::countr_zero(expr.sizes()))].rule;
  return rule && is_truth(rule->op);
}

SizeSet known_sizes(const GraphParts& parts) {
  SizeSet known = 0;
  for (const SizeStep& step : plan_sizes(parts)) known |= SizeSet{1} << step.size;
  return with_rules(parts, known);
}

}  // namespace stagecraft
