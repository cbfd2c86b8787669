#include "stagecraft/graph/capture/traced_inputs.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// Turns arg0["mask"][1] into arg0.mask.1.
std::string name_of_path(const std::string& path) {
  std::string name;
  for (const char c : path) {
    if (c == '[') name += '.';
    if (c != '[' && c != ']' && c != '"') name += c;
  }
  return name;
}

c10::IValue trace_input(GraphParts& parts, TracedValues& values, const std::string& path,
                        const c10::IValue& leaf, bool has_grads) {
  if (!leaf.isTensor() || !leaf.toTensor().defined()) {
    parts.inputs.push_back(Argument::fixed(leaf));
    return leaf;
  }
  // A copy: the model may change its arguments in place, and the caller's tensors must stay as
  // they are. The strides stay, because they decide which kernels run.
  at::Tensor mine = leaf.toTensor().detach().clone(at::MemoryFormat::Preserve);
  if (has_grads && (mine.is_floating_point() || mine.is_complex())) {
    // A copy of the leaf, because a leaf must not be changed in place.
    mine = mine.requires_grad_().clone(at::MemoryFormat::Preserve);
  }
  if (!mine.is_cpu()) values.saved().save_default_generator(mine.device());
  const ValueId value = values.make_value(mine, values.names().make(name_of_path(path)));
  if (auto* storage = values.find_storage(mine)) storage->is_outside = true;
  values.keep(mine);
  parts.inputs.push_back(value);
  return mine;
}

}  // namespace

Arguments trace_inputs(GraphParts& parts, TracedValues& values, const Arguments& arguments,
                       bool has_grads) {
  Arguments given;
  std::vector<c10::IValue> args;
  std::vector<std::pair<std::string, c10::IValue>> kwargs;
  auto add = [&](const std::string& path, const c10::IValue& leaf) {
    return trace_input(parts, values, path, leaf, has_grads);
  };
  for (std::size_t i = 0; i < arguments.args.size(); ++i) {
    given.args.push_back(tree::map_with_path(arguments.args[i], fmt::format("arg{}", i), add));
    args.push_back(given.args.back());
  }
  for (const auto& [name, value] : arguments.kwargs) {
    c10::IValue mine = tree::map_with_path(value, name, add);
    kwargs.emplace_back(name, mine);
    given.kwargs.set(name, std::move(mine));
  }
  parts.args = tree::flatten(tree::tuple(std::move(args))).spec;
  parts.kwargs = tree::flatten(tree::dict(std::move(kwargs))).spec;
  return given;
}

}  // namespace stagecraft
