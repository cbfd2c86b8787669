#include "stagecraft/exported/lower.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/exported/float_nodes.h"
#include "stagecraft/exported/guards.h"
#include "stagecraft/exported/node_arguments.h"
#include "stagecraft/exported/shared_memory.h"
#include "stagecraft/exported/size_table.h"
#include "stagecraft/exported/tree_json.h"
#include "stagecraft/graph/archive.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/names.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft::exported {

namespace {

/// The state that nodes run in.
struct Mode {
  bool is_no_grad = false;
  std::optional<AutocastState> autocast = {};
};

/// Values by their names in one graph of the archive.
using Scope = std::unordered_map<std::string, Argument>;

/// The names of the symbols in an expression.
std::vector<std::string> symbols_in(std::string_view text) {
  std::vector<std::string> found;
  constexpr std::string_view kMark = "Symbol('";
  if (text.find(kMark) != std::string_view::npos) {
    for (std::size_t at = text.find(kMark); at != std::string_view::npos;
         at = text.find(kMark, at + 1)) {
      const std::size_t begin = at + kMark.size();
      const std::size_t end = text.find('\'', begin);
      if (end != std::string_view::npos) found.emplace_back(text.substr(begin, end - begin));
    }
    return found;
  }
  TextCursor in(text);
  while (!in.at_end()) {
    const std::string word(in.read_word());
    if (word.empty()) {
      in.accept(std::string(1, in.peek()));
    } else if (in.peek() != '(') {
      found.push_back(word);
    }
  }
  return found;
}

/// Whether the expression is that symbol and nothing else.
bool is_bare(std::string_view text, const std::string& symbol) {
  if (text == symbol) return true;
  return text.starts_with("Symbol('") && text.find(')') == text.size() - 1;
}

void flatten(const RawArgument& argument, std::vector<RawArgument>& into) {
  if (const RawArgument::List* list = argument.list()) {
    for (const RawArgument& each : *list) flatten(each, into);
  } else {
    into.push_back(argument);
  }
}

std::vector<RawArgument> flattened(const std::vector<RawArgument>& arguments) {
  std::vector<RawArgument> result;
  for (const RawArgument& each : arguments) flatten(each, result);
  return result;
}

/// A name that a region may have in a graph.
std::string scope_name(std::string module) {
  for (char& c : module) {
    if (kNameCharacters.find(c) == std::string_view::npos) c = '_';
  }
  return module;
}

/// Makes the nodes of one graph: the model, or a branch of a cond.
class Builder {
 public:
  Builder(GraphParts& parts, SizeTable& sizes, UniqueNames& names,
          std::vector<std::string>& warnings, std::string prefix = "")
      : parts_(parts),
        sizes_(sizes),
        names_(names),
        warnings_(warnings),
        prefix_(std::move(prefix)) {
    parts_.is_exported = true;
  }

  ValueId add_value(const std::string& name, const RawTensor& meta) {
    const ValueId id(static_cast<int32_t>(parts_.values.size()));
    GraphValue value;
    value.name = name;
    value.dtype = meta.dtype;
    value.device = meta.device;
    require<GraphError>(meta.is_strided, "{} is no plain strided tensor", name);
    for (const RawSymbol& size : meta.sizes) {
      value.shape.push_back(shape_of(size, value.open_dims, value.shape.size()));
    }
    parts_.values.push_back(std::move(value));
    return id;
  }

  void lower_nodes(const RawGraph& graph, Scope& scope, const Mode& mode) {
    graphs_.push_back(&graph);
    for (const RawNode& node : graph.nodes) {
      try {
        lower_node(node, scope, mode);
      } catch (const FileError&) {
        throw;
      } catch (const std::exception& error) {
        const std::string message = message_of(error);
        if (message.starts_with("node ")) throw;  // of a graph inside
        throw GraphError(fmt::format("node {} ({}){}: {}", node.name, node.target,
                                     node.module.empty() ? "" : " in " + node.module, message));
      }
    }
    graphs_.pop_back();
  }

  Argument resolve(const RawArgument& raw, const Scope& scope) {
    if (const c10::IValue* fixed = raw.fixed()) return Argument::fixed(*fixed);
    if (const RawArgument::List* list = raw.list()) {
      Argument::List result;
      for (const RawArgument& each : *list) result.push_back(resolve(each, scope));
      return result;
    }
    const RawName* name = raw.name();
    require<GraphError>(name != nullptr, "expected a value, got a graph");
    if (name->kind == RawName::Kind::kTensor) {
      if (name->name.empty()) return {};
      const auto found = scope.find(name->name);
      require<GraphError>(found != scope.end(), "{} is read before it is made", name->name);
      return found->second;
    }
    require<GraphError>(name->kind != RawName::Kind::kObject,
                        "an object of the class {} cannot be made here", name->name);
    const auto made = scope.find(name->name);
    if (name->kind == RawName::Kind::kSymFloat && made != scope.end()) return made->second;
    return number_of(name->name);
  }

  /// The same elements in memory of their own.
  ValueId copy_of(ValueId value, const std::string& target) {
    GraphNode node;
    node.name = names_.make(prefix_ + target + ".before");
    return add_copy(std::move(node), value);
  }

  /// Copies a value into a state or an input when all nodes have run.
  void copy_back(const Argument& into, const Argument& value, const std::string& target) {
    GraphNode node;
    node.op = {"aten::copy_", ""};
    node.name = names_.make(prefix_ + "copy_" + target);
    node.arguments = {into, value, Argument::fixed(false)};
    const ValueId* id = into.value();
    require<GraphError>(id != nullptr && value.value() != nullptr, "{} is no tensor", target);
    GraphValue changed = parts_.values[static_cast<std::size_t>(id->value())];
    changed.name = node.name;
    node.results = {ValueId(static_cast<int32_t>(parts_.values.size()))};
    parts_.values.push_back(std::move(changed));
    node.is_no_grad = true;
    parts_.nodes.push_back(std::move(node));
  }

 private:
  SizeExpr shape_of(const RawSymbol& size, uint32_t& open, std::size_t dim) {
    if (size.number) return SizeExpr(*size.number);
    if (auto found = sizes_.find(size.expression)) return *found;
    if (dim < 32) open |= uint32_t{1} << dim;
    return SizeExpr(size.hint.value_or(1));
  }

  const RawSymbol* find_symbol(const std::string& name) const {
    for (std::size_t i = graphs_.size(); i-- > 0;) {
      const auto found = graphs_[i]->symbols.find(name);
      if (found != graphs_[i]->symbols.end()) return &found->second;
    }
    return nullptr;
  }

  Argument number_of(const std::string& name) {
    const RawSymbol* symbol = find_symbol(name);
    require<GraphError>(symbol != nullptr, "the archive does not say what the number {} is", name);
    if (symbol->number) return Argument::fixed(*symbol->number);
    const SizeExpr expr = sizes_.parse(symbol->expression);
    return expr.is_number() ? Argument::fixed(expr.number()) : Argument(expr);
  }

  /// Whether a node only computes with numbers: what those are, the archive says.
  static bool is_number_node(const RawNode& node) {
    if (node.outputs.empty()) return false;
    return std::ranges::all_of(node.outputs, [](const RawArgument& output) {
      return output.name() != nullptr && (output.name()->kind == RawName::Kind::kSymInt ||
                                          output.name()->kind == RawName::Kind::kSymBool);
    });
  }

  void lower_node(const RawNode& node, Scope& scope, const Mode& mode) {
    if (!node.own_function.empty() && functions_.insert(node.own_function).second) {
      warnings_.push_back(fmt::format(
          "{}, an autograd function of its own, was traced through: its backward is lost, "
          "gradients are those of the operators in its forward",
          node.own_function));
    }
    constexpr std::string_view kOps = "torch.ops.";
    constexpr std::string_view kRegions = "torch.ops.higher_order.";
    if (node.target.starts_with(kRegions)) {
      lower_region(node, node.target.substr(kRegions.size()), scope, mode);
      return;
    }
    if (node.target == "torch.ops.aten.item.default" ||
        node.target == "torch.ops.aten._local_scalar_dense.default") {
      lower_item(node, scope, mode);
      return;
    }
    if (lower_float(node, scope, mode) || is_number_node(node)) return;
    // Checks of what a graph says anyway, with a device that may not be the stage's.
    if (node.target == "torch.ops.aten._assert_tensor_metadata.default") return;
    require<GraphError>(node.target.starts_with(kOps), "there is no such operator outside Python");
    const std::string path = node.target.substr(kOps.size());
    const std::size_t first = path.find('.');
    const std::size_t second = first == std::string::npos ? first : path.find('.', first + 1);
    require<GraphError>(second != std::string::npos, "expected namespace.name.overload, got '{}'",
                        path);
    std::string overload = path.substr(second + 1);
    if (overload == "default") overload.clear();
    lower_call(
        node, {path.substr(0, first) + "::" + path.substr(first + 1, second - first - 1), overload},
        scope, mode);
  }

  GraphNode start_node(const RawNode& node, c10::OperatorName op, const Mode& mode) {
    GraphNode made;
    made.name = names_.make(prefix_ + (node.name.empty() ? "node" : node.name));
    made.op = std::move(op);
    made.is_no_grad = mode.is_no_grad;
    made.autocast = mode.autocast;
    made.scope = scope_name(node.module);
    return made;
  }

  void lower_call(const RawNode& node, c10::OperatorName op, Scope& scope, const Mode& mode) {
    const c10::FunctionSchema* schema = find_schema(op);
    require<GraphError>(
        schema != nullptr,
        "this program has no operator {}; load the library that it comes from first",
        c10::toString(op));
    GraphNode made = start_node(node, std::move(op), mode);
    const auto& formals = schema->arguments();
    std::vector<bool> is_given(formals.size(), false);
    made.arguments.resize(formals.size());
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const auto& [name, raw] = node.inputs[i];
      std::size_t formal = name.empty() ? i : 0;
      while (!name.empty() && formal < formals.size() && formals[formal].name() != name) ++formal;
      require<GraphError>(formal < formals.size() && !is_given[formal],
                          "the operator takes no argument '{}', or it is given twice", name);
      is_given[formal] = true;
      made.arguments[formal] = fit_argument(resolve(raw, scope), formals[formal]);
    }
    for (std::size_t i = 0; i < formals.size(); ++i) {
      if (!is_given[i]) made.arguments[i] = default_of(formals[i]);
    }
    give_floats_the_dtype(node, made, mode);
    if (made.op.name == "aten::copy_" && is_onto_itself(made)) {
      bind_results(node, made.arguments[0], scope);
      return;
    }
    made.results = make_results(node, *schema, made.name, scope);
    note_change(made, *schema);
    parts_.nodes.push_back(std::move(made));
  }

  // What works in place returns what it was given.
  void note_change(const GraphNode& made, const c10::FunctionSchema& schema) {
    if (made.results.size() != 1 || made.results[0].value() == nullptr) return;
    const auto* given = made.arguments.empty() ? nullptr : made.arguments[0].value();
    const auto* alias = schema.returns()[0].alias_info();
    if (given == nullptr || alias == nullptr || !alias->isWrite()) return;
    unchanged_[made.results[0].value()->value()] = original(*given);
  }

  int32_t original(ValueId value) const {
    const auto found = unchanged_.find(value.value());
    return found == unchanged_.end() ? value.value() : found->second;
  }

  /// A state that was changed in place is copied onto itself at the end, which changes nothing and
  /// yet would spoil a backward that needs it.
  bool is_onto_itself(const GraphNode& made) const {
    const ValueId* into = made.arguments[0].value();
    const ValueId* from = made.arguments[1].value();
    return into != nullptr && from != nullptr && original(*into) == original(*from);
  }

  static void bind_results(const RawNode& node, const Argument& value, Scope& scope) {
    for (const RawArgument& output : node.outputs) {
      if (output.name() != nullptr) scope[output.name()->name] = value;
    }
  }

  /// A new value under the name that the archive has for it, in the scope too; None for what it has
  /// no name for.
  Argument make_result(const RawArgument& output, const std::string& node, Scope& scope) {
    const RawName* name = output.name();
    if (name == nullptr || name->kind != RawName::Kind::kTensor || name->name.empty()) return {};
    const RawTensor* meta = nullptr;
    for (std::size_t i = graphs_.size(); i-- > 0 && meta == nullptr;) {
      const auto found = graphs_[i]->tensors.find(name->name);
      if (found != graphs_[i]->tensors.end()) meta = &found->second;
    }
    require<GraphError>(meta != nullptr, "the archive does not say what the tensor {} is",
                        name->name);
    // A node is named as its first result.
    const std::string wish = prefix_ + name->name;
    const bool is_node = wish == node && !value_names_.contains(node);
    const std::string own = is_node ? node : names_.make(wish);
    value_names_.insert(own);
    const ValueId id = next_value();
    measure(*meta, id);
    add_value(own, *meta);
    scope[name->name] = id;
    return id;
  }

  ValueId next_value() const { return ValueId(static_cast<int32_t>(parts_.values.size())); }

  // Sizes that depend on elements are known from here on.
  void measure(const RawTensor& meta, ValueId value) {
    for (std::size_t d = 0; d < meta.sizes.size(); ++d) {
      const RawSymbol& size = meta.sizes[d];
      if (size.number) continue;
      const std::vector<std::string> symbols = symbols_in(size.expression);
      if (symbols.size() != 1 || sizes_.has(symbols[0]) || !is_bare(size.expression, symbols[0])) {
        continue;
      }
      add_measured(symbols[0], {value, static_cast<int32_t>(d)}, size.hint);
    }
  }

  void add_measured(const std::string& symbol, const MeasuredSize& how,
                    std::optional<int64_t> hint) {
    GraphSize size;
    TextCursor in(symbol);
    const bool is_word = in.read_word() == symbol;
    size.name = is_word ? symbol : fmt::format("n{}", sizes_.sizes().size());
    size.example = hint.value_or(1);
    size.least = 0;
    size.measured = how;
    sizes_.add(symbol, std::move(size));
  }

  std::vector<Argument> make_results(const RawNode& node, const c10::FunctionSchema& schema,
                                     const std::string& name, Scope& scope) {
    const auto& returns = schema.returns();
    std::vector<Argument> results;
    if (returns.size() == 1 && element_type(returns[0].real_type()) != nullptr) {
      Argument::List list;
      for (const RawArgument& each : flattened(node.outputs)) {
        list.push_back(make_result(each, name, scope));
      }
      results.emplace_back(std::move(list));
      return results;
    }
    require<GraphError>(node.outputs.size() <= returns.size(),
                        "the operator returns {} values, and the archive has {}", returns.size(),
                        node.outputs.size());
    for (std::size_t i = 0; i < returns.size(); ++i) {
      if (i >= node.outputs.size()) {
        results.emplace_back();
      } else if (const RawArgument::List* list = node.outputs[i].list()) {
        Argument::List made;
        for (const RawArgument& each : *list) made.push_back(make_result(each, name, scope));
        results.emplace_back(std::move(made));
      } else {
        results.push_back(make_result(node.outputs[i], name, scope));
      }
    }
    return results;
  }

  // A number read from a tensor.
  void lower_item(const RawNode& node, Scope& scope, const Mode& mode) {
    require<GraphError>(
        node.inputs.size() == 1 && node.outputs.size() == 1 && node.outputs[0].name() != nullptr,
        "expected one tensor and one number");
    const RawSymbol* symbol = find_symbol(node.outputs[0].name()->name);
    if (symbol == nullptr || symbol->number) return;
    std::vector<std::string> unknown = symbols_in(symbol->expression);
    std::erase_if(unknown, [&](const std::string& each) { return sizes_.has(each); });
    if (unknown.empty()) return;
    const Argument tensor = resolve(node.inputs[0].second, scope);
    const ValueId* value = tensor.value();
    require<GraphError>(value != nullptr && unknown.size() == 1, "expected one tensor, one number");
    if (node.outputs[0].name()->kind == RawName::Kind::kSymFloat) {
      scope[node.outputs[0].name()->name] = add_float(node, {"aten::to", "dtype"}, {tensor}, mode);
      return;
    }
    // A copy, which a node of the graph has made: so it is known in which stage it is read.
    const ValueId copy = add_copy(start_node(node, {"", ""}, mode), *value);
    add_measured(unknown[0], {copy, -1}, symbol->hint);
  }

  ValueId add_copy(GraphNode node, ValueId value) {
    node.op = {"aten::clone", ""};
    node.arguments = {value, Argument()};
    GraphValue copy = parts_.values[static_cast<std::size_t>(value.value())];
    copy.name = node.name;
    const ValueId id = next_value();
    node.results = {id};
    parts_.values.push_back(std::move(copy));
    parts_.nodes.push_back(std::move(node));
    return id;
  }

  // Floats ---------------------------------------------------------------------------------------

  static bool is_float(const RawArgument& argument) {
    return argument.name() != nullptr && argument.name()->kind == RawName::Kind::kSymFloat;
  }

  /// A node whose result is a double without dimensions and history; the arguments come first, and
  /// the dtype where the operator has one.
  ValueId add_float(const RawNode& node, c10::OperatorName op, const std::vector<Argument>& given,
                    const Mode& mode) {
    GraphNode made = start_node(node, std::move(op), mode);
    made.is_no_grad = true;
    made.autocast.reset();
    const c10::FunctionSchema* schema = find_schema(made.op);
    for (std::size_t i = 0; i < schema->arguments().size(); ++i) {
      const c10::Argument& formal = schema->arguments()[i];
      if (i < given.size()) {
        made.arguments.push_back(fit_argument(given[i], formal));
      } else if (formal.name() == "dtype") {
        made.arguments.push_back(Argument::fixed(static_cast<int64_t>(c10::kDouble)));
      } else {
        made.arguments.push_back(default_of(formal));
      }
    }
    GraphValue value;
    value.name = made.name;
    value.dtype = c10::kDouble;
    const ValueId id = next_value();
    made.results = {id};
    parts_.values.push_back(std::move(value));
    parts_.nodes.push_back(std::move(made));
    floats_.insert(id.value());
    return id;
  }

  /// A node that computes floats, or an int of one; false where it is none.
  bool lower_float(const RawNode& node, Scope& scope, const Mode& mode) {
    if (node.outputs.size() != 1 || node.outputs[0].name() == nullptr) return false;
    const RawName& made = *node.outputs[0].name();
    const bool is_trunc = made.kind == RawName::Kind::kSymInt &&
                          (node.target == "math.trunc" || node.target == "torch.sym_int");
    if (made.kind != RawName::Kind::kSymFloat && !is_trunc) return false;
    std::vector<Argument> given;
    for (const auto& [name, raw] : node.inputs) {
      const Argument number = resolve(raw, scope);
      const bool is_tensor = number.value() != nullptr;
      given.push_back(is_tensor ? number
                                : add_float(node, {"aten::scalar_tensor", ""}, {number}, mode));
    }
    if (is_trunc) {
      const RawSymbol* symbol = find_symbol(made.name);
      require<GraphError>(symbol != nullptr && given.size() == 1, "expected one number");
      // Known by its whole expression: it has no symbol.
      if (symbol->number || sizes_.has(symbol->expression)) return true;
      add_measured(symbol->expression, {*given[0].value(), -1}, symbol->hint);
      return true;
    }
    const FloatOperator* op = find_float_operator(node.target);
    require<GraphError>(op != nullptr && !given.empty(),
                        "there is no such function of floats here");
    scope[made.name] = op->name[0] == '\0'
                           ? given[0]
                           : Argument(add_float(node, {op->name, op->overload}, given, mode));
    return true;
  }

  /// Where only numbers are given, as tensors without dimensions, a double would decide the dtype.
  void give_floats_the_dtype(const RawNode& node, GraphNode& made, const Mode& mode) {
    bool has_floats = false;
    bool has_dimensions = false;
    for (const auto& [name, raw] : node.inputs) has_floats = has_floats || is_float(raw);
    if (!has_floats || node.outputs.size() != 1 || node.outputs[0].name() == nullptr) return;
    for (const Argument& argument : made.arguments) {
      for_each_value(argument, [&](ValueId value) {
        has_dimensions =
            has_dimensions || !parts_.values[static_cast<std::size_t>(value.value())].shape.empty();
      });
    }
    const auto meta = graphs_.back()->tensors.find(node.outputs[0].name()->name);
    if (has_dimensions || meta == graphs_.back()->tensors.end()) return;
    const auto dtype = static_cast<int64_t>(meta->second.dtype);
    for (Argument& argument : made.arguments) {
      const ValueId* value = argument.value();
      if (value == nullptr || !floats_.contains(value->value())) continue;
      const ValueId cast =
          add_float(node, {"aten::to", "dtype"}, {*value, Argument::fixed(dtype)}, mode);
      parts_.values[static_cast<std::size_t>(cast.value())].dtype = meta->second.dtype;
      argument = cast;
    }
  }

  const RawGraph& graph_at(const RawNode& node, std::size_t i) const {
    require<GraphError>(i < node.inputs.size() && node.inputs[i].second.graph() != nullptr,
                        "expected a graph as argument {}", i);
    return *node.inputs[i].second.graph();
  }

  const c10::IValue& fixed_at(const RawNode& node, std::size_t i) const {
    require<GraphError>(i < node.inputs.size() && node.inputs[i].second.fixed() != nullptr,
                        "expected a fixed value as argument {}", i);
    return *node.inputs[i].second.fixed();
  }

  bool flag_at(const RawNode& node, std::size_t i) const {
    const c10::IValue& value = fixed_at(node, i);
    require<GraphError>(value.isBool(), "expected true or false as argument {}", i);
    return value.toBool();
  }

  void lower_region(const RawNode& node, const std::string& kind, Scope& scope, const Mode& mode) {
    if (kind == "wrap_with_set_grad_enabled") {
      Mode inner = mode;
      inner.is_no_grad = !flag_at(node, 0);
      inline_region(node, 1, scope, inner);
    } else if (kind == "wrap_with_autocast") {
      inline_region(node, 4, scope, autocast_of(node, mode));
    } else if (kind == "cond") {
      lower_cond(node, scope, mode);
    } else {
      throw GraphError(fmt::format(
          "the region {} cannot run here; those that can are cond, wrap_with_set_grad_enabled and "
          "wrap_with_autocast",
          kind));
    }
  }

  Mode autocast_of(const RawNode& node, const Mode& mode) {
    const c10::IValue& type = fixed_at(node, 0);
    require<GraphError>(type.isString(), "expected a kind of device as argument 0");
    Mode inner = mode;
    AutocastState state;
    state.device_type = c10::Device(type.toStringRef()).type();
    const c10::IValue& dtype = fixed_at(node, 1);
    if (dtype.isInt()) {
      state.dtype = static_cast<c10::ScalarType>(dtype.toInt());
    } else {
      state.dtype = state.device_type == c10::kCPU ? c10::kBFloat16 : c10::kHalf;
    }
    state.is_enabled = flag_at(node, 2);
    const c10::IValue& cache = fixed_at(node, 3);
    state.is_cached = !cache.isBool() || cache.toBool();
    state.region = mode.autocast ? mode.autocast->region : ++regions_;
    inner.autocast = state;
    return inner;
  }

  // The region's nodes among the others, under its names.
  void inline_region(const RawNode& node, std::size_t at, Scope& scope, const Mode& mode) {
    const RawGraph& graph = graph_at(node, at);
    std::vector<RawArgument> given;
    for (std::size_t i = at + 1; i < node.inputs.size(); ++i) flatten(node.inputs[i].second, given);
    require<GraphError>(given.size() == graph.inputs.size(), "the region takes {} values, got {}",
                        graph.inputs.size(), given.size());
    Scope inner;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const RawName* name = graph.inputs[i].name();
      if (name == nullptr || name->kind != RawName::Kind::kTensor) continue;
      inner[name->name] = resolve(given[i], scope);
    }
    lower_nodes(graph, inner, mode);
    const std::vector<RawArgument> made = flattened(graph.outputs);
    const std::vector<RawArgument> taken = flattened(node.outputs);
    require<GraphError>(taken.size() <= made.size(), "the region returns {} values, taken are {}",
                        made.size(), taken.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const RawName* name = taken[i].name();
      if (name == nullptr || name->kind != RawName::Kind::kTensor || name->name.empty()) continue;
      scope[name->name] = resolve(made[i], inner);
    }
  }

  void lower_cond(const RawNode& node, Scope& scope, const Mode& mode) {
    require<GraphError>(node.inputs.size() >= 3, "expected a predicate and two graphs");
    GraphNode made = start_node(node, {kCondOperator, ""}, mode);
    Argument predicate = resolve(node.inputs[0].second, scope);
    if (predicate.value() == nullptr) predicate = as_tensor(predicate, node, mode);
    std::vector<RawArgument> given;
    for (std::size_t i = 3; i < node.inputs.size(); ++i) flatten(node.inputs[i].second, given);
    std::vector<SizeTable> tables(2, sizes_.for_branch());
    std::vector<GraphParts> branches(2);
    Argument::List operands;
    for (const RawArgument& each : given) {
      const RawName* name = each.name();
      if (name != nullptr && name->kind == RawName::Kind::kTensor) {
        operands.push_back(resolve(each, scope));
      }
    }
    for (std::size_t b = 0; b < 2; ++b) {
      build_branch(graph_at(node, b + 1), given, made.name + (b == 0 ? ".then." : ".else."),
                   tables[b], branches[b]);
    }
    // Sizes that either of them needs are given to both.
    SizeSet needed = 0;
    for (std::size_t b = 0; b < 2; ++b) needed |= needed_sizes(branches[b], tables[b]);
    Argument::List told;
    for (std::size_t i = 0; i < sizes_.sizes().size(); ++i) {
      if ((needed >> i & 1) == 0) continue;
      const SizeExpr size = SizeExpr::of_size(static_cast<int>(i));
      told.emplace_back(size);
      for (GraphParts& branch : branches) branch.inputs.emplace_back(size);
    }
    for (std::size_t b = 0; b < 2; ++b) {
      branches[b].args = TreeSpec::tuple(std::vector<TreeSpec>(branches[b].inputs.size()));
      branches[b].sizes = tables[b].sizes();
      find_shared_memory(branches[b], {});
      made.branches.emplace_back(without_dead_code(branches[b]));
    }
    made.arguments = {predicate, std::move(operands), std::move(told)};
    Argument::List results;
    for (const RawArgument& each : flattened(node.outputs)) {
      results.push_back(make_result(each, made.name, scope));
    }
    made.results = {std::move(results)};
    parts_.nodes.push_back(std::move(made));
  }

  /// Which sizes without a rule the nodes and outputs of a branch read.
  static SizeSet needed_sizes(const GraphParts& branch, const SizeTable& table) {
    SizeSet needed = 0;
    auto note = [&](const SizeExpr& size) { needed |= size.sizes(); };
    for (const GraphNode& node : branch.nodes) {
      for (const Argument& argument : node.arguments) for_each_size(argument, note);
    }
    for (const Argument& output : branch.outputs) for_each_size(output, note);
    for (std::size_t i = table.sizes().size(); i-- > 0;) {
      const GraphSize& size = table.sizes()[i];
      if ((needed >> i & 1) == 0 || (!size.rule && !size.measured)) continue;
      needed &= ~(SizeSet{1} << i);
      if (size.rule) needed |= size.rule->sizes();
    }
    return needed;
  }

  void build_branch(const RawGraph& graph, const std::vector<RawArgument>& given,
                    const std::string& prefix, SizeTable& table, GraphParts& branch) {
    require<GraphError>(graph.inputs.size() == given.size(), "a branch takes {} values, got {}",
                        graph.inputs.size(), given.size());
    Builder inner(branch, table, names_, warnings_, prefix);
    inner.graphs_ = graphs_;
    inner.functions_ = functions_;
    Scope scope;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const RawName* name = graph.inputs[i].name();
      if (name == nullptr || name->kind != RawName::Kind::kTensor) continue;
      const auto meta = graph.tensors.find(name->name);
      require<GraphError>(meta != graph.tensors.end(),
                          "the archive does not say what the tensor {} is", name->name);
      const ValueId id = inner.add_value(names_.make(prefix + name->name), meta->second);
      scope[name->name] = id;
      branch.inputs.emplace_back(id);
    }
    inner.lower_nodes(graph, scope, {});
    inner.graphs_.push_back(&graph);
    for (const RawArgument& output : flattened(graph.outputs)) {
      branch.outputs.push_back(inner.resolve(output, scope));
      require<GraphError>(branch.outputs.back().value() != nullptr,
                          "a branch returns something that is no tensor");
    }
    branch.output = TreeSpec::tuple(std::vector<TreeSpec>(branch.outputs.size()));
    regions_ = std::max(regions_, inner.regions_);
  }

  /// A number as a tensor: 0 or 1, for a predicate that follows from sizes.
  Argument as_tensor(const Argument& number, const RawNode& node, const Mode& mode) {
    GraphNode made = start_node(node, {"aten::scalar_tensor", ""}, mode);
    made.arguments = {number, {}, {}, {}, {}};
    GraphValue value;
    value.name = made.name;
    value.dtype = c10::kFloat;
    const ValueId id = next_value();
    made.results = {id};
    parts_.values.push_back(std::move(value));
    parts_.nodes.push_back(std::move(made));
    return id;
  }

  GraphParts& parts_;
  SizeTable& sizes_;
  UniqueNames& names_;
  std::vector<std::string>& warnings_;
  std::string prefix_;
  std::vector<const RawGraph*> graphs_;             // that which is read, and those around it
  std::unordered_map<int32_t, int32_t> unchanged_;  // from what was changed in place to what it is
  std::set<int32_t> floats_;                        // values that are floats of Python's
  std::set<std::string> functions_;
  std::set<std::string> value_names_;
  int32_t regions_ = 0;
};

/// Makes the whole graph.
class Lowering {
 public:
  Lowering(const RawProgram& program, const Payload& payload)
      : program_(program),
        payload_(payload),
        builder_(result_.parts, sizes_, names_, result_.warnings) {}

  Lowered run() {
    require<FileError>(program_.inputs.size() == program_.graph.inputs.size(),
                       "the graph has {} inputs, and the signature {}",
                       program_.graph.inputs.size(), program_.inputs.size());
    require<FileError>(program_.outputs.size() == program_.graph.outputs.size(),
                       "the graph has {} outputs, and the signature {}",
                       program_.graph.outputs.size(), program_.outputs.size());
    find_sizes();
    add_states();
    add_inputs();
    copy_changed_states();
    builder_.lower_nodes(program_.graph, scope_, {});
    add_outputs();
    GraphParts& parts = result_.parts;
    for (const std::string& guard :
         add_guards(program_.guards, program_.argument_names, sizes_, parts)) {
      result_.warnings.push_back(fmt::format("not checked: {}", guard));
    }
    parts.sizes = sizes_.sizes();
    find_shared_memory(parts, pieces_);
    parts = without_dead_code(parts);
    return std::move(result_);
  }

 private:
  const RawTensor& meta_of(const RawArgument& argument) const {
    const RawName* name = argument.name();
    require<FileError>(name != nullptr && name->kind == RawName::Kind::kTensor,
                       "expected the name of a tensor as an input");
    const auto found = program_.graph.tensors.find(name->name);
    require<FileError>(found != program_.graph.tensors.end(),
                       "the archive does not say what the tensor {} is", name->name);
    return found->second;
  }

  // Sizes ----------------------------------------------------------------------------------------

  // Every symbol in the shapes of the inputs, named after the first dimension that is it.
  void find_sizes() {
    std::vector<std::pair<std::string, const RawSymbol*>> found;  // a wish for a name
    for (const RawInputSpec& input : program_.inputs) {
      const RawName* name = input.argument.name();
      if (input.kind != RawInputSpec::Kind::kUser || name == nullptr) continue;
      if (name->kind == RawName::Kind::kSymInt) {
        const auto symbol = program_.graph.symbols.find(name->name);
        require<FileError>(symbol != program_.graph.symbols.end(),
                           "the archive does not say what the number {} is", name->name);
        found.emplace_back(name->name, &symbol->second);
      } else if (name->kind == RawName::Kind::kTensor) {
        const RawTensor& meta = meta_of(input.argument);
        for (std::size_t d = 0; d < meta.sizes.size(); ++d) {
          found.emplace_back(fmt::format("{}_dim{}", name->name, d), &meta.sizes[d]);
        }
      }
    }
    for (const bool is_bare_turn : {true, false}) {
      for (const auto& [wish, symbol] : found) {
        if (symbol->number) continue;
        for (const std::string& name : symbols_in(symbol->expression)) {
          const bool is_it = is_bare(symbol->expression, name);
          if (sizes_.has(name) || is_it != is_bare_turn) continue;
          add_size(name, is_it ? wish : name, is_it ? symbol->hint : example_of(name, *symbol));
        }
      }
    }
  }

  void add_size(const std::string& symbol, const std::string& wish,
                std::optional<int64_t> example) {
    GraphSize size;
    size.name = wish;
    TextCursor in(wish);
    const bool is_word = in.read_word() == wish && wish != "None" && wish != "True" &&
                         wish != "False" && wish != "inf" && wish != "nan" && wish != "undefined";
    const bool is_taken = std::ranges::count(sizes_.sizes(), wish, &GraphSize::name) > 0;
    if (!is_word || is_taken) size.name = symbol;
    size.least = 0;
    const auto range = program_.ranges.find(symbol);
    if (range != program_.ranges.end()) {
      size.least = range->second.least.value_or(0);
      size.greatest = range->second.greatest.value_or(size.greatest);
    }
    size.example =
        std::clamp(example.value_or(size.least), size.least, std::max(size.least, size.greatest));
    size.greatest = std::max(size.least, size.greatest);
    sizes_.add(symbol, std::move(size));
  }

  /// The size of a symbol in the example, from an expression in which it alone stands.
  std::optional<int64_t> example_of(const std::string& name, const RawSymbol& symbol) const {
    for (const auto& [value, meta] : program_.graph.tensors) {
      for (const RawSymbol& size : meta.sizes) {
        if (!size.number && is_bare(size.expression, name) &&
            symbols_in(size.expression) == std::vector<std::string>{name}) {
          return size.hint;
        }
      }
    }
    if (!symbol.hint) return std::nullopt;
    return solve(symbol.expression, name, *symbol.hint);
  }

  // States and inputs ----------------------------------------------------------------------------

  void add_states() {
    std::map<std::tuple<std::string, std::vector<int64_t>, std::vector<int64_t>, int64_t>,
             std::size_t>
        seen;
    for (const RawInputSpec& input : program_.inputs) {
      using Kind = RawInputSpec::Kind;
      if (input.kind == Kind::kUser || input.kind == Kind::kFixed) continue;
      const Payload::Found found = payload_.get(input.target);
      const at::Tensor& tensor = found.tensor;
      const std::string name = names_.make(input.target);
      const auto [same, is_new] =
          seen.try_emplace(std::tuple(found.piece, tensor.sizes().vec(), tensor.strides().vec(),
                                      tensor.storage_offset()),
                           result_.parts.states.size());
      const std::string& key = input.argument.name()->name;
      if (!is_new) {
        GraphState& first = result_.parts.states[same->second];
        if (input.kind != Kind::kConstant) first.other_names.push_back(name);
        scope_[key] = first.value;
        by_target_[input.target] = first.value;
        continue;
      }
      RawTensor meta;
      meta.dtype = tensor.scalar_type();
      for (const int64_t size : tensor.sizes()) meta.sizes.push_back({.number = size});
      const ValueId id = builder_.add_value(name, meta);
      result_.parts.states.push_back(
          {.kind = input.kind == Kind::kParameter ? GraphState::Kind::kParameter
                   : input.kind == Kind::kBuffer  ? GraphState::Kind::kBuffer
                                                  : GraphState::Kind::kConstant,
           .value = id,
           .tensor = tensor,
           .is_persistent = input.is_persistent});
      pieces_.emplace_back(id, found.piece);
      scope_[key] = id;
      by_target_[input.target] = id;
    }
  }

  // What the outputs change is read from a copy: the backward needs it as it was.
  void copy_changed_states() {
    std::set<std::string> changed;
    for (const RawOutputSpec& output : program_.outputs) {
      if (output.kind == RawOutputSpec::Kind::kStateChange) changed.insert(output.target);
    }
    for (const RawInputSpec& input : program_.inputs) {
      if (!changed.contains(input.target)) continue;
      if (input.kind == RawInputSpec::Kind::kUser || input.kind == RawInputSpec::Kind::kFixed) {
        continue;
      }
      const std::string& name = input.argument.name()->name;
      scope_[name] = builder_.copy_of(*scope_.at(name).value(), input.target);
    }
  }

  void add_inputs() {
    GraphParts& parts = result_.parts;
    const TreeSpec tree = read_tree(program_.in_tree, "in_spec");
    const auto children = tree.children();
    const bool is_call = children.size() == 2 && children[0].kind() == TreeSpec::Kind::kTuple &&
                         children[1].kind() == TreeSpec::Kind::kDict;
    require<FileError>(is_call, "expected arguments and keyword arguments as in_spec");
    parts.args = children[0];
    parts.kwargs = children[1];
    for (const RawInputSpec& input : program_.inputs) {
      if (input.kind == RawInputSpec::Kind::kFixed) {
        parts.inputs.push_back(builder_.resolve(input.argument, scope_));
        continue;
      }
      if (input.kind != RawInputSpec::Kind::kUser) continue;
      const RawName* name = input.argument.name();
      if (name == nullptr || name->kind == RawName::Kind::kObject) {
        parts.inputs.push_back(builder_.resolve(input.argument, scope_));
      } else if (name->kind == RawName::Kind::kTensor) {
        const ValueId id = builder_.add_value(names_.make(name->name), meta_of(input.argument));
        scope_[name->name] = id;
        parts.inputs.emplace_back(id);
      } else {
        const auto given = program_.graph.symbols.find(name->name);
        require<FileError>(given != program_.graph.symbols.end(),
                           "the archive does not say what the number {} is", name->name);
        const RawSymbol& symbol = given->second;
        const SizeExpr expr =
            symbol.number ? SizeExpr(*symbol.number) : sizes_.parse(symbol.expression);
        parts.inputs.push_back(expr.is_number() ? Argument::fixed(expr.number()) : Argument(expr));
      }
    }
    const std::size_t leaves = parts.args.num_leaves() + parts.kwargs.num_leaves();
    require<FileError>(parts.inputs.size() == leaves, "in_spec has {} leaves, the signature {}",
                       leaves, parts.inputs.size());
  }

  void add_outputs() {
    GraphParts& parts = result_.parts;
    for (const RawOutputSpec& output : program_.outputs) {
      using Kind = RawOutputSpec::Kind;
      const Argument value = resolve_output(output.argument);
      if (output.kind == Kind::kUser) {
        parts.outputs.push_back(value);
        continue;
      }
      const auto state = by_target_.find(output.target);
      const auto input = scope_.find(output.target);
      const bool is_state = output.kind == Kind::kStateChange;
      require<FileError>(is_state ? state != by_target_.end() : input != scope_.end(),
                         "there is no {} that could be changed", output.target);
      builder_.copy_back(is_state ? Argument(state->second) : input->second, value, output.target);
    }
    parts.output = read_tree(program_.out_tree, "out_spec");
    require<FileError>(parts.outputs.size() == parts.output.num_leaves(),
                       "out_spec has {} leaves, the signature {}", parts.output.num_leaves(),
                       parts.outputs.size());
  }

  Argument resolve_output(const RawArgument& argument) {
    const RawName* name = argument.name();
    if (name == nullptr || name->kind == RawName::Kind::kTensor) {
      return builder_.resolve(argument, scope_);
    }
    const auto found = program_.graph.symbols.find(name->name);
    require<GraphError>(found != program_.graph.symbols.end(),
                        "the archive does not say what the number {} is", name->name);
    if (found->second.number) return Argument::fixed(*found->second.number);
    const SizeExpr expr = sizes_.parse(found->second.expression);
    return expr.is_number() ? Argument::fixed(expr.number()) : Argument(expr);
  }

  const RawProgram& program_;
  const Payload& payload_;
  Lowered result_;
  SizeTable sizes_;
  UniqueNames names_;
  Builder builder_;
  Scope scope_;
  std::unordered_map<std::string, ValueId> by_target_;
  std::vector<std::pair<ValueId, std::string>> pieces_;
};

}  // namespace

Lowered lower(const RawProgram& program, const Payload& payload) {
  return Lowering(program, payload).run();
}

}  // namespace stagecraft::exported
