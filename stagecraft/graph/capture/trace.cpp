#include "stagecraft/graph/capture/trace.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/capture/element_access.h"
#include "stagecraft/graph/capture/element_shapes.h"
#include "stagecraft/graph/capture/trace_place.h"
#include "stagecraft/graph/capture/traced_arguments.h"
#include "stagecraft/graph/capture/traced_inputs.h"
#include "stagecraft/graph/capture/traced_values.h"
#include "stagecraft/graph/capture/tracer.h"
#include "stagecraft/graph/capture/unwritten_memory.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/run/run_mode.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// Records the operators of a forward as the parts of a graph.
class OperatorRecorder final : public Tracer {
 public:
  OperatorRecorder(const StageBody& model, const TraceOptions& options) : options_(options) {
    // Before the model runs: a trace must not change the numbers that the program draws later.
    values_.saved().save_default_generator(c10::kCPU);
    values_.add_states(model.parameters, GraphState::Kind::kParameter);
    values_.add_states(model.buffers, GraphState::Kind::kBuffer);
  }

  /// The arguments that the model is called with instead of `arguments`.
  Arguments take_inputs(const Arguments& arguments) {
    return trace_inputs(parts_, values_, arguments, options_.has_input_grads);
  }

  void take_output(const c10::IValue& output) {
    place_.set_subject("the output of the model");
    tree::Flat flat = tree::flatten(output, "output");
    parts_.output = flat.spec;
    for (const c10::IValue& leaf : flat.leaves) {
      parts_.outputs.push_back(arguments_.convert(leaf, c10::AnyType::get(), "output"));
    }
    // An output may be memory that the model has filled by pointer.
    for (Argument& result : parts_.outputs) unwritten_.freeze(result, {});
    if (const auto problem = values_.histories().find_problem(flat.leaves)) place_.fail(*problem);
  }

  void use_other_elements(ElementChange change) { change_ = change; }

  void check_parameters() {
    const auto name = values_.hooks().take_new();
    if (!name) return;
    throw CaptureError(fmt::format(
        "a hook was registered on %{} inside the forward; register it once, outside", *name));
  }

  GraphParts finish() { return std::move(parts_); }

  void enter_scope(const std::string& name) override { place_.enter_scope(name); }
  void leave_scope() override { place_.leave_scope(); }

  void record(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const c10::FunctionSchema& schema = op.schema();
    place_.set_subject(toString(op.operator_name()));
    // Answered without a record: whether two arguments are one tensor does not depend on elements.
    if (schema.name() == "aten::equal" && answer_equal(stack)) return;
    if (reads_back(schema)) {
      // Not recorded: the result follows from shapes and dtypes. If it differs at other sizes, so
      // do the numbers that the model computes from it, and capture compares those.
      if (reads_metadata(schema.name())) return op.callBoxed(stack);
      place_.fail(fmt::format(
          "it reads a value back to the host, which a graph would freeze as it is now{}",
          schema.name() == "aten::equal"
              ? "; if different tensors may count as unequal, as in the attention of torch::nn, "
                "set CaptureOptions::equal_by_identity"
              : ""));
    }
    GraphNode node;
    node.op = op.operator_name();
    node.is_no_grad = !c10::GradMode::is_enabled();
    node.autocast = current_autocast();
    node.scope = place_.scope();
    const std::size_t count = schema.arguments().size();
    // A copy: the call replaces the arguments on the stack by its results.
    const std::vector<c10::IValue> given(stack.end() - static_cast<std::ptrdiff_t>(count),
                                         stack.end());
    for (std::size_t i = 0; i < count; ++i) {
      const c10::Argument& formal = schema.arguments()[i];
      node.arguments.push_back(arguments_.convert(given[i], formal.real_type(), formal.name()));
    }
    const auto written = written_arguments(schema, node.arguments);
    // Arguments are converted before the call, because an in-place operator gives its tensor a new
    // value. States are saved before it, because it changes them.
    for (const std::size_t i : written) values_.save_before_change(given[i]);
    call(op, node, stack);

    place_.set_subject(toString(op.operator_name()));
    const std::size_t returned = schema.returns().size();
    std::unordered_set<int32_t> result_memory;
    const std::size_t first_result = stack.size() - returned;
    for (std::size_t i = 0; i < returned; ++i)
      values_.collect_memory(stack[first_result + i], result_memory);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::ranges::count(written, i) > 0) {
        unwritten_.note_written(node.arguments[i]);
      } else if (reads_elements(schema.name())) {
        unwritten_.freeze(node.arguments[i], result_memory);
      }
    }
    node.name = values_.names().of_operator(schema.name());
    int result = 0;
    for (std::size_t i = 0; i < returned; ++i) {
      node.results.push_back(bind(stack[first_result + i], node, result));
    }
    if (returns_unwritten(schema.name())) unwritten_.note_allocated(node.results.front());
    // An operator that writes returns its argument with new elements, which is not the state any
    // more.
    if (written.empty()) values_.rebind_states(given, stack, first_result);
    parts_.nodes.push_back(std::move(node));
  }

 private:
  // Calls -----------------------------------------------------------------------------------------

  // torch::nn's attention calls at::equal to find out whether query, key and value are one tensor.
  // Returns whether the call was answered without reading elements.
  bool answer_equal(torch::jit::Stack& stack) const {
    const at::Tensor& a = stack[stack.size() - 2].toTensor();
    const at::Tensor& b = stack[stack.size() - 1].toTensor();
    const bool is_same = a.is_same(b);
    if (!is_same && !options_.equal_by_identity) return false;
    torch::jit::drop(stack, 2);
    stack.emplace_back(is_same);
    return true;
  }

  void call(const c10::OperatorHandle& op, const GraphNode& node, torch::jit::Stack& stack) {
    if (!change_) return op.callBoxed(stack);
    if (const auto decides = shape_deciding_argument(op.schema())) {
      c10::IValue& argument = stack[stack.size() - op.schema().arguments().size() + *decides];
      argument = with_other_elements(argument, op.schema(), *change_);
    }
    try {
      op.callBoxed(stack);
    } catch (...) {
      // The arguments show whether the model has read the different number before it failed.
      parts_.nodes.push_back(node);
      throw;
    }
  }

  // Results ---------------------------------------------------------------------------------------

  Argument bind(const c10::IValue& returned, const GraphNode& node, int& number) {
    if (returned.isTensor()) {
      const at::Tensor& tensor = returned.toTensor();
      if (!tensor.defined()) return {};
      std::string name = node.name;
      if (number++ > 0) name = values_.names().make(fmt::format("{}.{}", node.name, number - 1));
      return values_.make_value(tensor, std::move(name));
    }
    if (!returned.isTensorList()) return {};
    Argument::List list;
    for (const c10::IValue& each : returned.toListRef()) list.push_back(bind(each, node, number));
    return list;
  }

  GraphParts parts_;
  TracedValues values_{parts_};
  TracePlace place_;
  TracedArguments arguments_{parts_, values_, place_};
  UnwrittenMemory unwritten_{values_, place_};
  TraceOptions options_;
  std::optional<ElementChange> change_;
};

}  // namespace

GraphParts trace(const StageBody& model, const Arguments& arguments, const TraceOptions& options) {
  // The history of values tells custom functions and hooks, so gradients are on, whatever the
  // caller's mode.
  const c10::AutoGradMode with_grad(true);
  OperatorRecorder recorder(model, options);
  const Arguments given = recorder.take_inputs(arguments);
  c10::IValue output;
  {
    const TracerScope on(recorder);
    output = model.forward(given.args, given.kwargs);
  }
  recorder.check_parameters();
  recorder.take_output(output);
  return recorder.finish();
}

OtherElements trace_with_other_elements(const StageBody& model, const Arguments& arguments,
                                        ElementChange change, const TraceOptions& options) {
  const c10::AutoGradMode with_grad(true);
  OperatorRecorder recorder(model, options);
  recorder.use_other_elements(change);
  const Arguments given = recorder.take_inputs(arguments);
  OtherElements result;
  try {
    const TracerScope on(recorder);
    model.forward(given.args, given.kwargs);
  } catch (const std::exception&) {
    result.failure = describe(std::current_exception());
  }
  result.parts = recorder.finish();
  return result;
}

}  // namespace stagecraft
