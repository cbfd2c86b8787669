#include "stagecraft/graph/graph_text.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Generator.h>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree_text.h"

namespace stagecraft {

namespace {

std::string double_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", number);
  // A double stays a double when it is read back: 1 would be an int.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string fixed_text(const c10::IValue& value, const c10::TypePtr& type) {
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) {
    if (is_of(type, c10::TypeKind::ScalarTypeType)) {
      return dtype_name(static_cast<c10::ScalarType>(value.toInt()));
    }
    return fmt::format("{}", value.toInt());
  }
  if (value.isDouble()) return double_text(value.toDouble());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return fmt::format("complex({}, {})", double_text(number.real()), double_text(number.imag()));
  }
  if (value.isString()) return quote(value.toStringRef());
  if (value.isDevice()) return fmt::format("device({})", quote(value.toDevice().str()));
  if (value.isGenerator()) {
    return fmt::format("generator({})", quote(value.toGenerator().device().str()));
  }
  if (value.isTensor() && !value.toTensor().defined()) return "undefined";
  if (value.isList()) {
    const c10::TypePtr element = element_type(type);
    std::string text = "[";
    for (const c10::IValue& each : value.toListRef()) {
      if (text.size() > 1) text += ", ";
      text += fixed_text(each, element ? element : c10::AnyType::get());
    }
    return text + "]";
  }
  return fmt::format("object({})", quote(value.tagKind()));
}

class Printer {
 public:
  explicit Printer(const GraphParts& parts) : parts_(parts) {
    for (const GraphSize& size : parts.sizes) size_names_.push_back(size.name);
  }

  std::string print() {
    line("graph{}", parts_.is_exported ? " exported" : "");
    for (const GraphSize& size : parts_.sizes) {
      if (size.rule) {
        line("size {} = {}, as {}", size.name, size.example, to_text(*size.rule, size_names_));
        continue;
      }
      if (size.measured) {
        const int32_t dim = size.measured->dim;
        line("size {} = {}, from %{}{}", size.name, size.example, name_of(size.measured->value),
             dim < 0 ? "" : fmt::format(" dimension {}", dim));
        continue;
      }
      const bool is_limited = size.greatest != std::numeric_limits<int64_t>::max();
      line("size {} = {}, at least {}{}", size.name, size.example, size.least,
           is_limited ? fmt::format(", at most {}", size.greatest) : "");
    }
    for (const GraphGuard& guard : parts_.guards) {
      line("require {}: {}", to_text(guard.holds, size_names_), quote(guard.text));
    }
    for (const GraphState& state : parts_.states) print_state(state);
    std::size_t leaf = 0;
    auto input = [&](std::size_t) { return typed(parts_.inputs[leaf++]); };
    line("args {}", to_text(parts_.args, input));
    line("kwargs {}", to_text(parts_.kwargs, input));
    for (const GraphNode& node : parts_.nodes) print_node(node);
    line("return {}", to_text(parts_.output, [&](std::size_t i) {
           return argument(parts_.outputs[i], c10::AnyType::get());
         }));
    return std::move(out_);
  }

  std::string argument(const Argument& value, const c10::TypePtr& type) const {
    if (const ValueId* id = value.value()) return "%" + name_of(*id);
    if (const SizeExpr* size = value.size()) return to_text(*size, size_names_);
    if (const Argument::List* list = value.list()) {
      std::string text = "[";
      const c10::TypePtr element = element_type(type);
      for (const Argument& each : *list) {
        if (text.size() > 1) text += ", ";
        text += argument(each, element ? element : c10::AnyType::get());
      }
      return text + "]";
    }
    return fixed_text(*value.fixed_value(), type);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  const GraphValue& value(ValueId id) const { return parts_.values[id]; }
  const std::string& name_of(ValueId id) const { return value(id).name; }
  std::string type_of(ValueId id) const { return to_text(value(id), size_names_); }

  std::string typed(const Argument& leaf) const {
    if (const ValueId* id = leaf.value()) return fmt::format("%{}: {}", name_of(*id), type_of(*id));
    return argument(leaf, c10::AnyType::get());
  }

  void print_state(const GraphState& state) {
    std::string kind = state.kind == GraphState::Kind::kParameter ? "parameter"
                       : state.kind == GraphState::Kind::kBuffer  ? "buffer"
                                                                  : "constant";
    std::string also;
    for (const std::string& name : state.other_names) also += fmt::format(", also %{}", name);
    line("{} %{}: {}{}{}", kind, name_of(state.value), type_of(state.value),
         state.is_persistent ? "" : ", not saved", also);
  }

  void print_node(const GraphNode& node) {
    const c10::FunctionSchema* schema = find_schema(node.op);
    std::string results;
    std::string types;
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      if (i > 0) results += ", ";
      if (i > 0) types += ", ";
      results += argument(node.results[i], c10::AnyType::get());
      types += result_types(node.results[i]);
    }
    std::string arguments;
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      if (i > 0) arguments += ", ";
      if (schema == nullptr || i >= schema->arguments().size()) {
        arguments += argument(node.arguments[i], c10::AnyType::get());
        continue;
      }
      const c10::Argument& formal = schema->arguments()[i];
      arguments += formal.name() + "=" + argument(node.arguments[i], formal.real_type());
    }
    std::string state;
    if (node.is_no_grad) state += " no_grad";
    if (node.autocast) {
      const int32_t region = node.autocast->region;
      state +=
          fmt::format(" autocast({}, {}{}{}{})",
                      c10::DeviceTypeName(node.autocast->device_type, /*lower_case=*/true),
                      dtype_name(node.autocast->dtype), node.autocast->is_enabled ? "" : ", off",
                      node.autocast->is_cached ? "" : ", uncached",
                      region > 0 ? fmt::format(", region {}", region) : "");
    }
    if (!node.scope.empty()) state += " in " + node.scope;
    // The name of a node is written only if it differs from that of its first result.
    std::string name;
    const ValueId* first = node.results.empty() ? nullptr : node.results.front().value();
    if (first == nullptr || name_of(*first) != node.name) name = node.name + ": ";
    line("{}{}{}{}({}){}{}", name, results, results.empty() ? "" : " = ", c10::toString(node.op),
         arguments, types.empty() ? "" : ": " + types, state);
    for (const Graph& branch : node.branches) print_branch(branch);
  }

  void print_branch(const Graph& branch) {
    const std::string text = to_text(branch);
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos;
         end = text.find('\n', begin)) {
      line("  {}", std::string_view(text).substr(begin, end - begin));
      begin = end + 1;
    }
  }

  std::string result_types(const Argument& result) const {
    if (const ValueId* id = result.value()) return type_of(*id);
    if (const Argument::List* list = result.list()) {
      std::string text = "[";
      for (const Argument& each : *list) {
        if (text.size() > 1) text += ", ";
        text += result_types(each);
      }
      return text + "]";
    }
    return "None";
  }

  const GraphParts& parts_;
  std::vector<std::string> size_names_;
  std::string out_;
};

std::string shape_text(const GraphValue& value, std::span<const std::string> size_names) {
  std::string text;
  for (std::size_t dim = 0; dim < value.shape.size(); ++dim) {
    if (dim > 0) text += ", ";
    if ((value.open_dims >> dim & 1) != 0) text += "?";
    text += to_text(value.shape[dim], size_names);
  }
  return text;
}

}  // namespace

std::string to_text(const GraphValue& value, std::span<const std::string> size_names) {
  std::string text = fmt::format("{}[{}]", dtype_name(value.dtype), shape_text(value, size_names));
  if (!value.device.is_cpu()) text += "@" + value.device.str();
  if (value.memory >= 0) text += fmt::format(" &{}", value.memory);
  return text;
}

std::string describe(const GraphValue& value, std::span<const std::string> size_names) {
  return fmt::format("Tensor[{}] {}", shape_text(value, size_names), dtype_name(value.dtype));
}

std::string to_text(const Graph& graph) {
  return Printer(graph.parts()).print();
}

}  // namespace stagecraft
