#include "stagecraft/exported/node_builder.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/exported/node_arguments.h"
#include "stagecraft/exported/operator_names.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft::exported {

namespace {

/// The largest accepted size of a dimension: more elements than any machine holds.
constexpr int64_t kGreatestSize = int64_t{1} << 40;

}  // namespace

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

NodeBuilder::NodeBuilder(GraphParts& parts, SizeTable& sizes, UniqueNames& names,
                         std::vector<std::string>& warnings, std::string prefix)
    : parts_(parts), sizes_(sizes), names_(names), warnings_(warnings), prefix_(std::move(prefix)) {
  parts_.is_exported = true;
}

ValueId NodeBuilder::add_value(const std::string& name, const RawTensor& meta) {
  GraphValue value;
  value.name = name;
  value.dtype = meta.dtype;
  value.device = meta.device;
  require<GraphError>(meta.is_strided, "{} is not a strided tensor", name);
  for (const RawSymbol& size : meta.sizes) {
    value.shape.push_back(shape_of(size, value.open_dims, value.shape.size()));
  }
  return parts_.values.push_back(std::move(value));
}

void NodeBuilder::import_nodes(const RawGraph& graph, Scope& scope, const Mode& mode) {
  graphs_.push_back(&graph);
  for (const RawNode& node : graph.nodes) {
    try {
      import_node(node, scope, mode);
    } catch (const FileError&) {
      throw;
    } catch (const std::exception&) {
      const std::string message = describe(std::current_exception());
      if (message.starts_with("node ")) throw;  // of a graph inside
      throw GraphError(fmt::format("node {} ({}){}: {}", node.name, node.target,
                                   node.module.empty() ? "" : " in " + node.module, message));
    }
  }
  graphs_.pop_back();
}

Argument NodeBuilder::resolve(const RawArgument& raw, const Scope& scope) {
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
                      "an object of the class {} cannot be created outside Python", name->name);
  const auto made = scope.find(name->name);
  if (name->kind == RawName::Kind::kSymFloat && made != scope.end()) return made->second;
  return number_of(name->name);
}

ValueId NodeBuilder::copy_of(ValueId value, const std::string& target) {
  GraphNode node;
  node.name = names_.make(prefix_ + target + ".before");
  return add_copy(std::move(node), value);
}

void NodeBuilder::copy_back(const Argument& into, const Argument& value,
                            const std::string& target) {
  GraphNode node;
  node.op = {"aten::copy_", ""};
  node.name = names_.make(prefix_ + "copy_" + target);
  node.arguments = {into, value, Argument::fixed(false)};
  const ValueId* id = into.value();
  require<GraphError>(id != nullptr && value.value() != nullptr, "{} is not a tensor", target);
  node.is_no_grad = true;
  add_node(std::move(node), parts_.values[*id]);
}

SizeExpr NodeBuilder::shape_of(const RawSymbol& size, uint32_t& open, std::size_t dim) {
  const int64_t example = size.number ? *size.number : size.hint.value_or(1);
  require<GraphError>(example >= 0 && example <= kGreatestSize, "there is no tensor of the size {}",
                      example);
  if (size.number) return SizeExpr(*size.number);
  if (auto found = sizes_.find(size.expression)) return *found;
  if (dim < 32) open |= uint32_t{1} << dim;
  return SizeExpr(size.hint.value_or(1));
}

const RawSymbol* NodeBuilder::find_symbol(const std::string& name) const {
  for (std::size_t i = graphs_.size(); i-- > 0;) {
    const auto found = graphs_[i]->symbols.find(name);
    if (found != graphs_[i]->symbols.end()) return &found->second;
  }
  return nullptr;
}

Argument NodeBuilder::number_of(const std::string& name) {
  const RawSymbol* symbol = find_symbol(name);
  require<GraphError>(symbol != nullptr, "the archive does not say what the number {} is", name);
  return number_of(*symbol);
}

Argument NodeBuilder::number_of(const RawSymbol& symbol) {
  if (symbol.number) return Argument::fixed(*symbol.number);
  const SizeExpr expr = sizes_.parse(symbol.expression);
  return expr.is_number() ? Argument::fixed(expr.number()) : Argument(expr);
}

bool NodeBuilder::is_number_node(const RawNode& node) {
  if (node.outputs.empty()) return false;
  return std::ranges::all_of(node.outputs, [](const RawArgument& output) {
    return output.name() != nullptr && (output.name()->kind == RawName::Kind::kSymInt ||
                                        output.name()->kind == RawName::Kind::kSymBool);
  });
}

void NodeBuilder::import_node(const RawNode& node, Scope& scope, const Mode& mode) {
  if (!node.own_function.empty() && functions_.insert(node.own_function).second) {
    warnings_.push_back(fmt::format(
        "the export traced through the custom autograd function {}: its backward is lost, "
        "gradients are those of the operators in its forward",
        node.own_function));
  }
  constexpr std::string_view kRegions = "torch.ops.higher_order.";
  if (node.target.starts_with(kRegions)) {
    import_region(node, node.target.substr(kRegions.size()), scope, mode);
    return;
  }
  if (node.target == "torch.ops.aten.item.default" ||
      node.target == "torch.ops.aten._local_scalar_dense.default") {
    import_item(node, scope, mode);
    return;
  }
  if (import_float(node, scope, mode) || is_number_node(node)) return;
  // Dropped: the graph states the metadata of its tensors anyway, and the operator would check a
  // device that may not be the stage's.
  if (node.target == "torch.ops.aten._assert_tensor_metadata.default") return;
  import_call(node, operator_of(node.target), scope, mode);
}

GraphNode NodeBuilder::start_node(const RawNode& node, c10::OperatorName op, const Mode& mode) {
  GraphNode made;
  made.name = names_.make(prefix_ + (node.name.empty() ? "node" : node.name));
  made.op = std::move(op);
  made.is_no_grad = mode.is_no_grad;
  made.autocast = mode.autocast;
  made.scope = as_name(node.module);
  return made;
}

void NodeBuilder::import_call(const RawNode& node, c10::OperatorName op, Scope& scope,
                              const Mode& mode) {
  const c10::FunctionSchema* schema = find_schema(op);
  if (schema == nullptr) throw_missing_operator(op);
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

// Notes that the result of an operator that works in place is the value that it was given.
void NodeBuilder::note_change(const GraphNode& made, const c10::FunctionSchema& schema) {
  if (made.results.size() != 1 || made.results[0].value() == nullptr) return;
  const auto* alias = schema.returns()[0].alias_info();
  if (alias == nullptr || !alias->isWrite()) return;
  for (std::size_t i = 0; i < made.arguments.size(); ++i) {
    // The argument that is changed is not always the first: `out` comes last.
    const auto* formal = schema.arguments()[i].alias_info();
    const ValueId* given = made.arguments[i].value();
    if (given == nullptr || formal == nullptr || formal->afterSets() != alias->afterSets())
      continue;
    unchanged_[made.results[0].value()->value()] = original(*given);
    return;
  }
}

int32_t NodeBuilder::original(ValueId value) const {
  const auto found = unchanged_.find(value.value());
  return found == unchanged_.end() ? value.value() : found->second;
}

bool NodeBuilder::is_onto_itself(const GraphNode& made) const {
  const ValueId* into = made.arguments[0].value();
  const ValueId* from = made.arguments[1].value();
  return into != nullptr && from != nullptr && original(*into) == original(*from);
}

void NodeBuilder::bind_results(const RawNode& node, const Argument& value, Scope& scope) {
  for (const RawArgument& output : node.outputs) {
    if (output.name() != nullptr) scope[output.name()->name] = value;
  }
}

Argument NodeBuilder::make_result(const RawArgument& output, const std::string& node,
                                  Scope& scope) {
  const RawName* name = output.name();
  if (name == nullptr || name->kind != RawName::Kind::kTensor || name->name.empty()) return {};
  const RawTensor* meta = nullptr;
  for (std::size_t i = graphs_.size(); i-- > 0 && meta == nullptr;) {
    const auto found = graphs_[i]->tensors.find(name->name);
    if (found != graphs_[i]->tensors.end()) meta = &found->second;
  }
  require<GraphError>(meta != nullptr, "the archive does not say what the tensor {} is",
                      name->name);
  // A node has the name of its first result.
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

ValueId NodeBuilder::next_value() const {
  return ValueId(parts_.values.size());
}

// Adds the sizes that are known from this value on, because they depend on elements.
void NodeBuilder::measure(const RawTensor& meta, ValueId value) {
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

void NodeBuilder::add_measured(const std::string& symbol, const MeasuredSize& how,
                               std::optional<int64_t> hint) {
  GraphSize size;
  TextCursor in(symbol);
  const bool is_word = in.read_word() == symbol;
  size.name = is_word ? symbol : fmt::format("n{}", sizes_.sizes().size());
  while (std::ranges::count(sizes_.sizes(), size.name, &GraphSize::name) > 0) size.name += "_";
  size.example = hint.value_or(1);
  size.least = 0;
  size.measured = how;
  sizes_.add(symbol, std::move(size));
}

std::vector<Argument> NodeBuilder::make_results(const RawNode& node,
                                                const c10::FunctionSchema& schema,
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

// Imports a node that reads a number from a tensor.
void NodeBuilder::import_item(const RawNode& node, Scope& scope, const Mode& mode) {
  require<GraphError>(
      node.inputs.size() == 1 && node.outputs.size() == 1 && node.outputs[0].name() != nullptr,
      "expected one tensor and one number");
  const RawSymbol* symbol = find_symbol(node.outputs[0].name()->name);
  if (symbol == nullptr || symbol->number) return;
  std::vector<std::string> unknown = symbols_in(symbol->expression);
  std::erase_if(unknown, [&](const std::string& each) { return sizes_.has(each); });
  if (unknown.empty()) {
    check_item(node, *symbol, scope, mode);
    return;
  }
  const Argument tensor = resolve(node.inputs[0].second, scope);
  const ValueId* value = tensor.value();
  require<GraphError>(value != nullptr && unknown.size() == 1, "expected one tensor, one number");
  if (node.outputs[0].name()->kind == RawName::Kind::kSymFloat) {
    scope[node.outputs[0].name()->name] =
        add_float(node, {"aten::to", "dtype"},
                  {tensor, Argument::fixed(static_cast<int64_t>(c10::kDouble)),
                   Argument::fixed(false), Argument::fixed(true)},
                  mode);
    return;
  }
  // The size is measured at a copy, because a node makes the copy: this determines the stage that
  // reads the element.
  const ValueId copy = add_copy(start_node(node, {"", ""}, mode), *value);
  add_measured(unknown[0], {copy, -1}, symbol->hint);
}

// The export assumed that the element is a known number. A run must check this.
void NodeBuilder::check_item(const RawNode& node, const RawSymbol& symbol, Scope& scope,
                             const Mode& mode) {
  const Argument tensor = resolve(node.inputs[0].second, scope);
  if (tensor.value() == nullptr || is_float(node.outputs[0])) return;
  const SizeExpr expected = sizes_.parse(symbol.expression);
  const ValueId copy = add_copy(start_node(node, {"", ""}, mode), *tensor.value());
  const std::string name = fmt::format("item{}", sizes_.sizes().size());
  add_measured(name, {copy, -1}, symbol.hint);
  GraphNode check = start_node(node, {"aten::_assert_scalar", ""}, mode);
  check.arguments = {sizes_.apply(SizeRule::Op::kEqual, sizes_.parse(name), expected),
                     Argument::fixed("the element is not the size that the export assumed")};
  parts_.nodes.push_back(std::move(check));
}

ValueId NodeBuilder::add_copy(GraphNode node, ValueId value) {
  node.op = {"aten::clone", ""};
  node.arguments = {value, Argument()};
  return add_node(std::move(node), parts_.values[value]);
}

ValueId NodeBuilder::add_node(GraphNode node, GraphValue result) {
  const ValueId id = next_value();
  result.name = node.name;
  node.results = {id};
  parts_.values.push_back(std::move(result));
  parts_.nodes.push_back(std::move(node));
  return id;
}

}  // namespace stagecraft::exported
