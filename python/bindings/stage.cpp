#include "python/bindings/stage.h"

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "python/bindings/python_call.h"
#include "python/bindings/values.h"
#include "stagecraft/base/check.h"
#include "stagecraft/stage/stage_context.h"

namespace stagecraft::python {
namespace {

NamedTensors named_tensors(py::handle list) {
  NamedTensors tensors;
  for (const py::handle entry : list) {
    const auto pair = py::reinterpret_borrow<py::tuple>(entry);
    tensors.emplace_back(pair[0].cast<std::string>(), pair[1].cast<at::Tensor>());
  }
  return tensors;
}

std::pair<NamedTensors, NamedTensors> tensors_of(const py::object& call) {
  const py::tuple both = call.attr("tensors")();
  return {named_tensors(both[0]), named_tensors(both[1])};
}

const char* letter_of(BackwardKind kind) {
  switch (kind) {
    case BackwardKind::kFull:
      return "B";
    case BackwardKind::kInput:
      return "I";
    case BackwardKind::kWeight:
      return "W";
  }
  return "";
}

AroundBackward around_backward(const py::object& begin, const py::object& end) {
  return [begin = hold(begin), end = hold(end)](const BackwardInfo& info,
                                                const std::function<void()>& backward) {
    const auto tell = [&](const Held& whom) {
      with_gil(
          [&] { handle_of(whom)(letter_of(info.kind), info.microbatch.value(), info.is_last); });
    };
    tell(begin);
    try {
      backward();
    } catch (...) {
      try {
        tell(end);
      } catch (const Error&) {
        // If both fail, the first failure is reported.
      }
      throw;
    }
    tell(end);
  };
}

std::function<void()> callback(const py::object& function) {
  if (function.is_none()) return {};
  return [held = hold(function)] { with_gil([&] { handle_of(held)(); }); };
}

std::function<std::function<void()>()> weight_work(const py::object& builder) {
  if (builder.is_none()) return {};
  return [held = hold(builder)]() -> std::function<void()> {
    const Held work = with_gil([&] { return hold(handle_of(held)()); });
    return [work] {
      with_gil([&] {
        if (!handle_of(work).is_none()) handle_of(work)();
      });
    };
  };
}

// A stage that is used alone, outside a step.
class LoneStage {
 public:
  LoneStage(int32_t index, int32_t num_stages, const py::object& call)
      : stage_(make_stage(index, num_stages, call)) {}

  py::object forward(int32_t m, const py::tuple& args, const py::dict& kwargs, bool is_training) {
    const Arguments arguments = to_arguments(args, kwargs);
    c10::IValue output;
    {
      const py::gil_scoped_release release;
      output = stage_.forward(MicrobatchId(m), arguments, {.is_training = is_training});
    }
    return to_python(output);
  }
  void set_loss(int32_t m, const at::Tensor& loss) { stage_.set_loss(MicrobatchId(m), loss); }
  py::tuple backward(int32_t m, const py::object& grads, double weight, bool is_full) {
    const std::vector<c10::IValue> values = to_values(grads);
    std::vector<c10::IValue> result;
    {
      const py::gil_scoped_release release;
      result = is_full ? stage_.backward(MicrobatchId(m), values, weight)
                       : stage_.backward_input(MicrobatchId(m), values, weight);
    }
    return to_python(result);
  }
  void backward_weight(int32_t m) {
    const py::gil_scoped_release release;
    stage_.backward_weight(MicrobatchId(m));
  }
  void expect_backwards(std::size_t count) { stage_.expect_backwards(count); }
  std::size_t num_pending() const { return stage_.num_pending(); }
  void reset() {
    const py::gil_scoped_release release;
    stage_.reset();
  }

 private:
  Stage stage_;
};

py::object current_place() {
  const StageContext* const context = current_stage();
  if (context == nullptr) return py::none();
  return py::make_tuple(context->stage.value(), context->num_stages, context->microbatch.value(),
                        context->is_training);
}

}  // namespace

Stage make_stage(int32_t index, int32_t num_stages, const py::object& call) {
  StageBody body;
  body.forward = [forward = hold(call.attr("forward"))](const Args& args, const Kwargs& kwargs) {
    const int32_t m = current_stage()->microbatch.value();
    return with_gil([&] {
      py::dict named;
      for (const auto& [name, value] : kwargs) named[py::str(name)] = to_python(value);
      return to_value(handle_of(forward)(m, to_python(args), named));
    });
  };
  std::tie(body.parameters, body.buffers) = tensors_of(call);
  StageOptions options;
  options.device = call.attr("device").cast<c10::Device>();
  options.recompute = call.attr("recompute").cast<bool>();
  options.weight_work = weight_work(call.attr("weight_work"));
  if (const py::object begin = call.attr("begin_backward"); !begin.is_none()) {
    options.around_backward = around_backward(begin, call.attr("end_backward"));
  }
  options.on_unshard = callback(call.attr("unshard"));
  options.on_reshard = callback(call.attr("reshard"));
  options.on_reduce_grad = callback(call.attr("reduce_grad"));
  return {StageId(index), num_stages, std::move(body), std::move(options)};
}

void bind_stage(py::module_& module) {
  py::class_<LoneStage>(module, "Stage", py::release_gil_before_calling_cpp_dtor(),
                        "A stage with its microbatches in flight, outside a step.")
      .def(py::init<int32_t, int32_t, const py::object&>(), py::arg("index"), py::arg("num_stages"),
           py::arg("call"))
      .def("forward", &LoneStage::forward)
      .def("set_loss", &LoneStage::set_loss)
      .def("backward", &LoneStage::backward)
      .def("backward_weight", &LoneStage::backward_weight)
      .def("expect_backwards", &LoneStage::expect_backwards)
      .def("num_pending", &LoneStage::num_pending)
      .def("reset", &LoneStage::reset);
  module.def(
      "current_stage", &current_place,
      "(stage, num_stages, microbatch, is_training) of the forward that runs here, or None.");
  module.def("add_loss", [](const at::Tensor& loss) { add_loss(loss); });
}

}  // namespace stagecraft::python
