#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/ivalue.h>

#include "stagecraft/graph/argument_reader.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree_text.h"

namespace stagecraft {

namespace {

class Parser : private ArgumentReader {
 public:
  Parser(TextCursor in, const StateReader& read_state, int depth = 0)
      : ArgumentReader(in, depth), read_state_(read_state) {}

  GraphParts parse() {
    GraphParts parts = read_graph();
    in_.skip_space();
    in_.expect_end();
    return parts;
  }

 private:
  GraphParts read_graph() {
    in_.expect("graph");
    parts_.is_exported = in_.accept(" exported");
    end_line();
    while (in_.accept("size ")) read_size();
    while (in_.accept("require ")) read_guard();
    for (bool is_state = true; is_state;) {
      is_state = accept_state("parameter ", GraphState::Kind::kParameter) ||
                 accept_state("buffer ", GraphState::Kind::kBuffer) ||
                 accept_state("constant ", GraphState::Kind::kConstant);
    }
    in_.expect("args ");
    parts_.args = read_inputs(TreeSpec::Kind::kTuple, "a tuple");
    in_.expect("kwargs ");
    parts_.kwargs = read_inputs(TreeSpec::Kind::kDict, "a dict");
    while (!in_.accept("return ")) read_node();
    parts_.output = read_tree_spec(
        in_, [&](TextCursor&) { parts_.outputs.push_back(read_argument(c10::AnyType::get())); });
    end_line();
    for (const auto& [size, name] : measured_) {
      // Only now are all values known: sizes come at the head of the text.
      const auto found = by_name_.find(name);
      if (found == by_name_.end()) {
        in_.fail(fmt::format("size {} is measured at %{}, which does not exist",
                             parts_.sizes[size].name, name));
      }
      parts_.sizes[size].measured->value = found->second;
    }
    return std::move(parts_);
  }

  void end_line() {
    skip_blanks();
    if (in_.at_end()) return;
    in_.read_all_of("\r");
    in_.expect("\n");
    in_.skip_space();
  }

  // The head ------------------------------------------------------------------------------------

  void read_size() {
    GraphSize size;
    const TextCursor start = in_;
    size.name = in_.read_word();
    if (size.name.empty()) in_.fail("expected the name of a size, got " + in_.describe_next());
    if (parts_.sizes.size() == SizeExpr::kMaxSizes) {
      start.fail(fmt::format("expected at most {} sizes", SizeExpr::kMaxSizes));
    }
    in_.expect(" = ");
    size.example = in_.read_integer();
    if (in_.accept(", as ")) {
      size.rule = parse_size_rule(in_, size_names_);
    } else if (in_.accept(", from %")) {
      size.measured = MeasuredSize{};
      // The value comes later in the text.
      measured_.emplace_back(parts_.sizes.size(), read_name("the name of a value"));
      if (in_.accept(" dimension ")) size.measured->dim = static_cast<int32_t>(in_.read_integer());
    } else {
      in_.expect(", at least ");
      size.least = in_.read_integer();
      if (in_.accept(", at most ")) size.greatest = in_.read_integer();
    }
    end_line();
    size_names_.push_back(size.name);
    parts_.sizes.push_back(std::move(size));
  }

  void read_guard() {
    GraphGuard guard;
    guard.holds = parse_size_expr(in_, size_names_);
    in_.expect(": ");
    guard.text = in_.read_quoted();
    end_line();
    parts_.guards.push_back(std::move(guard));
  }

  bool accept_state(std::string_view keyword, GraphState::Kind kind) {
    if (!in_.accept(keyword)) return false;
    GraphState state;
    state.kind = kind;
    state.value = read_new_value();
    in_.expect(":");
    read_type(state.value);
    if (in_.accept(", not saved")) state.is_persistent = false;
    while (in_.accept(", also %")) state.other_names.push_back(read_name("a name"));
    end_line();
    state.tensor = read_state_(parts_.values[state.value].name);
    parts_.states.push_back(std::move(state));
    return true;
  }

  TreeSpec read_inputs(TreeSpec::Kind kind, std::string_view what) {
    const TextCursor start = in_;
    TreeSpec spec = read_tree_spec(in_, [&](TextCursor&) {
      if (in_.peek() != '%') {
        parts_.inputs.push_back(read_argument(c10::AnyType::get()));
        return;
      }
      const ValueId value = read_new_value();
      in_.expect(":");
      read_type(value);
      parts_.inputs.push_back(value);
    });
    if (spec.kind() != kind)
      start.fail(fmt::format("expected {}, got {}", what, describe_kind(spec)));
    end_line();
    return spec;
  }

  // Nodes ---------------------------------------------------------------------------------------

  void read_node() {
    if (in_.at_end()) in_.fail("expected 'return', got the end of the text");
    GraphNode node;
    const TextCursor start = in_;
    std::vector<PendingResult> results;
    std::string word;
    if (in_.peek() != '%' && in_.peek() != '[') word = read_name("a node");
    if (!word.empty() && word != "None" && !in_.accept("::")) {
      node.name = std::exchange(word, "");
      in_.expect(":");
      skip_blanks();
      if (in_.peek() != '%' && in_.peek() != '[') word = read_name("an operator");
      if (!word.empty() && word != "None") in_.expect("::");
    }
    if (word.empty() || word == "None") {
      if (word == "None") results.push_back({});
      if (word.empty()) results.push_back(read_result());
      while (skip_blanks(), in_.accept(",")) {
        skip_blanks();
        results.push_back(read_result());
      }
      in_.expect("=");
      skip_blanks();
      word = read_name("an operator");
      in_.expect("::");
    }
    if (node.name.empty() && !results.empty()) node.name = results.front().name;
    node.op = read_op(word);
    const c10::FunctionSchema* schema = find_schema(node.op);
    if (schema == nullptr) start.fail(fmt::format("there is no operator {}", toString(node.op)));
    read_arguments(node, *schema);
    // After the arguments, because an operator does not read its own results.
    for (PendingResult& result : results) node.results.push_back(make_result(result, start));
    if (skip_blanks(), in_.accept(":")) {
      for (std::size_t i = 0; i < node.results.size(); ++i) {
        if (i > 0) in_.expect(",");
        read_result_types(node.results[i]);
      }
    }
    read_state(node);
    end_line();
    // Only this operator has branches, and always two, so the text needs no mark for them.
    if (node.op.name == kCondOperator) {
      for (int i = 0; i < 2; ++i) node.branches.push_back(read_branch());
    }
    parts_.nodes.push_back(std::move(node));
  }

  Graph read_branch() {
    const Depth depth(*this);
    Parser inner(in_, read_state_, depth_);
    GraphParts parts = inner.read_graph();
    in_ = inner.in_;
    return Graph(std::move(parts));
  }

  struct PendingResult {
    std::string name;  // empty: None, or a list
    bool is_list = false;
    std::vector<PendingResult> elements = {};
  };

  PendingResult read_result() {
    PendingResult result;
    if (in_.accept("%")) {
      result.name = read_name("the name of a value");
    } else if (in_.accept("[")) {
      const Depth depth(*this);
      result.is_list = true;
      while (skip_blanks(), !in_.accept("]")) {
        if (!result.elements.empty()) in_.expect(",");
        skip_blanks();
        result.elements.push_back(read_result());
      }
    } else {
      in_.expect("None");
    }
    return result;
  }

  Argument make_result(PendingResult& result, const TextCursor& start) {
    if (!result.is_list) {
      if (result.name.empty()) return {};
      return make_value(std::move(result.name), start);
    }
    Argument::List list;
    for (PendingResult& each : result.elements) list.push_back(make_result(each, start));
    return list;
  }

  c10::OperatorName read_op(const std::string& space) {
    const std::string_view name = in_.read_word();
    std::string overload;
    if (in_.accept(".")) overload = in_.read_word();
    return {space + "::" + std::string(name), overload};
  }

  void read_arguments(GraphNode& node, const c10::FunctionSchema& schema) {
    in_.expect("(");
    for (const c10::Argument& formal : schema.arguments()) {
      if (!node.arguments.empty()) {
        skip_blanks();
        in_.expect(",");
      }
      skip_blanks();
      in_.expect(formal.name() + "=");
      node.arguments.push_back(read_argument(formal.real_type()));
    }
    skip_blanks();
    in_.expect(")");
  }

  void read_result_types(const Argument& result) {
    skip_blanks();
    if (const ValueId* value = result.value()) {
      read_type(*value);
    } else if (const Argument::List* list = result.list()) {
      in_.expect("[");
      for (std::size_t i = 0; i < list->size(); ++i) {
        if (i > 0) in_.expect(",");
        read_result_types((*list)[i]);
      }
      in_.expect("]");
    } else {
      in_.expect("None");
    }
  }

  void read_state(GraphNode& node) {
    skip_blanks();
    if (in_.accept("no_grad")) node.is_no_grad = true;
    skip_blanks();
    if (in_.accept("autocast(")) {
      const TextCursor start = in_;
      AutocastState state;
      state.device_type = read_device(std::string(in_.read_word()), start).type();
      in_.expect(",");
      skip_blanks();
      state.dtype = read_dtype();
      state.is_enabled = !in_.accept(", off");
      state.is_cached = !in_.accept(", uncached");
      if (in_.accept(", region ")) state.region = static_cast<int32_t>(in_.read_integer());
      in_.expect(")");
      node.autocast = state;
    }
    skip_blanks();
    if (in_.accept("in ")) node.scope = read_name("the name of a region");
  }

  const StateReader& read_state_;
  std::vector<std::pair<std::size_t, std::string>> measured_;  // sizes, and the values' names
};

}  // namespace

Graph parse_graph(std::string_view text, const StateReader& read_state) {
  return Graph(Parser(TextCursor(text), read_state).parse());
}

}  // namespace stagecraft
