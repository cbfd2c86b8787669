#include "python/bindings/values.h"

#include <string>
#include <utility>

#include <ATen/core/jit_type.h>
#include <torch/csrc/autograd/python_variable.h>

#include "python/bindings/python_call.h"
#include "stagecraft/base/error.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft::python {
namespace {

// Any Python object, as a leaf.
class PyLeaf final : public Opaque {
 public:
  explicit PyLeaf(py::handle object)
      : object_(hold(object)), type_(py::str(py::type::of(object).attr("__qualname__"))) {}

  std::string describe() const override { return "a Python object of type " + type_; }
  py::object object() const { return py::reinterpret_borrow<py::object>(handle_of(object_)); }

 private:
  Held object_;
  std::string type_;
};

bool has_string_keys(const py::dict& dict) {
  for (const auto& [key, value] : dict) {
    if (!PyUnicode_CheckExact(key.ptr())) return false;
  }
  return true;
}

c10::IValue leaf_of(py::handle object) {
  return make_opaque(c10::make_intrusive<PyLeaf>(object));
}

c10::IValue number_of(py::handle object) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return overflow == 0 ? c10::IValue(static_cast<int64_t>(number)) : leaf_of(object);
}

c10::IValue list_of(py::handle object) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const py::handle item : py::reinterpret_borrow<py::list>(object)) {
    list.push_back(to_value(item));
  }
  return list;
}

c10::IValue dict_of(const py::dict& dict) {
  c10::impl::GenericDict result(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : dict) {
    result.insert(key.cast<std::string>(), to_value(value));
  }
  return result;
}

}  // namespace

py::object to_python(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return py::none();
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  }
  if (value.isNone()) return py::none();
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    py::tuple result(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) result[i] = to_python(elements[i]);
    return result;
  }
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isList()) {
    const auto list = value.toList();
    py::list result;
    for (std::size_t i = 0; i < list.size(); ++i) result.append(to_python(list.get(i)));
    return result;
  }
  if (value.isGenericDict()) {
    py::dict result;
    for (const auto& entry : value.toGenericDict()) {
      result[to_python(entry.key())] = to_python(entry.value());
    }
    return result;
  }
  if (const auto leaf = find_opaque<PyLeaf>(value)) return leaf->object();
  throw ArgumentError("this value has no form in Python: " + describe(value));
}

c10::IValue to_value(py::handle object) {
  PyObject* const raw = object.ptr();
  if (THPVariable_Check(raw)) return THPVariable_Unpack(raw);
  if (object.is_none()) return {};
  if (PyTuple_CheckExact(raw)) {
    std::vector<c10::IValue> elements;
    for (const py::handle item : py::reinterpret_borrow<py::tuple>(object)) {
      elements.push_back(to_value(item));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (PyBool_Check(raw)) return raw == Py_True;
  if (PyLong_CheckExact(raw)) return number_of(object);
  if (PyFloat_CheckExact(raw)) return PyFloat_AS_DOUBLE(raw);
  if (PyUnicode_CheckExact(raw)) return object.cast<std::string>();
  if (PyList_CheckExact(raw)) return list_of(object);
  if (PyDict_CheckExact(raw)) {
    const auto dict = py::reinterpret_borrow<py::dict>(object);
    if (has_string_keys(dict)) return dict_of(dict);
  }
  return leaf_of(object);
}

py::tuple to_python(const std::vector<c10::IValue>& values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result[i] = to_python(values[i]);
  return result;
}

std::vector<c10::IValue> to_values(py::handle sequence) {
  std::vector<c10::IValue> values;
  for (const py::handle item : sequence) values.push_back(to_value(item));
  return values;
}

Arguments to_arguments(const py::tuple& args, const py::dict& kwargs) {
  Arguments arguments{to_values(args), {}};
  for (const auto& [name, value] : kwargs) {
    arguments.kwargs.set(name.cast<std::string>(), to_value(value));
  }
  return arguments;
}

}  // namespace stagecraft::python
