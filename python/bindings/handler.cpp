#include "python/bindings/handler.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/python_call.h"
#include "python/bindings/values.h"
#include "stagecraft/base/check.h"
#include "stagecraft/schedule/text.h"

namespace stagecraft::python {
namespace {

template <typename Call>
auto released(const Call& call) {
  const py::gil_scoped_release release;
  return call();
}

// The argument of a Python handler. Only one thread at a time may call its functions.
class PyAction {
 public:
  explicit PyAction(ActionContext& context) : context_(&context) {}
  void end() { context_ = nullptr; }

  std::string text() const { return to_string(context().action()); }
  bool is_overlap() const { return context().action().is_overlap(); }
  // (stage, type, microbatch) of each part; -1 for a field that the part lacks.
  py::list parts() const {
    py::list list;
    for (const Action part : context().parts()) {
      const bool has = has_microbatch(part.type());
      list.append(py::make_tuple(part.stage().value(), std::string(to_string(part.type())),
                                 has ? part.microbatch().value() : -1));
    }
    return list;
  }
  void run(std::size_t part) {
    const py::gil_scoped_release release;
    context().run(part);
  }
  void run_all() {
    const py::gil_scoped_release release;
    context().run_all();
  }
  double loss_weight(std::size_t part) const { return context().loss_weight(part); }

  py::tuple take_inputs(std::size_t part) {
    const Arguments arguments = released([&] { return context().take_inputs(part); });
    py::dict kwargs;
    for (const auto& [name, value] : arguments.kwargs) kwargs[py::str(name)] = to_python(value);
    return py::make_tuple(to_python(arguments.args), kwargs);
  }
  py::object forward(std::size_t part, const py::tuple& args, const py::dict& kwargs) {
    const Arguments arguments = to_arguments(args, kwargs);
    return to_python(released([&] {
      return context().stage(part).forward(context().microbatch(part), arguments,
                                           context().forward_options(part));
    }));
  }
  void finish_forward(std::size_t part, const py::object& output,
                      const std::optional<at::Tensor>& loss, bool has_own_loss) {
    const c10::IValue value = to_value(output);
    released([&] {
      if (has_own_loss) {
        context().finish_forward(value, loss.value_or(at::Tensor()), part);
      } else {
        context().finish_forward(value, part);
      }
    });
  }
  py::tuple take_output_grads(std::size_t part) {
    return to_python(released([&] { return context().take_output_grads(part); }));
  }
  py::tuple backward(std::size_t part, const py::object& grads, bool is_full) {
    const std::vector<c10::IValue> values = to_values(grads);
    return to_python(released([&] {
      Stage& stage = context().stage(part);
      const MicrobatchId m = context().microbatch(part);
      return is_full ? stage.backward(m, values, context().loss_weight(part))
                     : stage.backward_input(m, values, context().loss_weight(part));
    }));
  }
  void backward_weight(std::size_t part) {
    released([&] { context().stage(part).backward_weight(context().microbatch(part)); });
  }
  void finish_backward(std::size_t part, const py::object& grads) {
    std::vector<c10::IValue> values = to_values(grads);
    released([&] { context().finish_backward(std::move(values), part); });
  }

 private:
  ActionContext& context() const {
    require<ArgumentError>(context_ != nullptr, "the action is over: its handler has returned");
    return *context_;
  }
  ActionContext* context_;
};

}  // namespace

ActionHandler handler_of(const py::object& function) {
  if (function.is_none()) return {};
  return [held = hold(function)](ActionContext& context) {
    with_gil([&] {
      const auto action = std::make_shared<PyAction>(context);
      try {
        handle_of(held)(action);
      } catch (...) {
        action->end();
        throw;
      }
      action->end();
    });
  };
}

void bind_handler(py::module_& module) {
  py::class_<PyAction, std::shared_ptr<PyAction>>(
      module, "Action", "The functions that the handler of an action may call.")
      .def_property_readonly("text", &PyAction::text)
      .def_property_readonly("is_overlap", &PyAction::is_overlap)
      .def_property_readonly("parts", &PyAction::parts)
      .def("run", &PyAction::run)
      .def("run_all", &PyAction::run_all)
      .def("loss_weight", &PyAction::loss_weight)
      .def("take_inputs", &PyAction::take_inputs)
      .def("forward", &PyAction::forward)
      .def("finish_forward", &PyAction::finish_forward)
      .def("take_output_grads", &PyAction::take_output_grads)
      .def("backward", &PyAction::backward)
      .def("backward_weight", &PyAction::backward_weight)
      .def("finish_backward", &PyAction::finish_backward);
}

}  // namespace stagecraft::python
