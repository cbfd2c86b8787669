#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "stagecraft/graph/argument.h"
#include "stagecraft/graph/capture/trace_place.h"
#include "stagecraft/graph/capture/traced_values.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Turns the values that the running model gives to operators, or returns, into arguments of the
/// graph.
class TracedArguments {
 public:
  /// Adds nodes and states to `parts`. The arguments must outlive the object.
  TracedArguments(GraphParts& parts, TracedValues& values, TracePlace& place)
      : parts_(parts), values_(values), place_(place) {}

  /// The argument for `given`. `type` is the type that the operator declares, `name` is for
  /// messages. Tensors become values of the graph: a tensor that no recorded operator made becomes
  /// a state, or the result of a detach. Random states are saved. CaptureError if the graph cannot
  /// hold the value, or if the tensor has a history that the graph would lose.
  Argument convert(const c10::IValue& given, const c10::TypePtr& type, std::string_view name);

 private:
  ValueId value_of(const at::Tensor& tensor);
  void note_module(ValueId value);
  void check_history(const TracedValues::Entry& entry, const at::Tensor& tensor) const;
  ValueId adopt(const at::Tensor& tensor);
  ValueId detached(const at::Tensor& tensor, ValueId latest);

  GraphParts& parts_;
  TracedValues& values_;
  TracePlace& place_;
};

}  // namespace stagecraft
