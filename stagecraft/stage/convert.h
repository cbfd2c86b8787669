#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

// Converts a value of a tree to a parameter of an ordinary function.
namespace stagecraft::detail {

[[noreturn]] void refuse_value(std::size_t parameter, const char* expected, const c10::IValue& got);

template <typename T>
struct Convert {
  static T from(const c10::IValue& value, std::size_t) { return value.to<T>(); }
};
template <>
struct Convert<at::Tensor> {
  static at::Tensor from(const c10::IValue& value, std::size_t parameter) {
    if (value.isTensor()) return value.toTensor();
    if (value.isNone()) return {};
    refuse_value(parameter, "a tensor", value);
  }
};
template <>
struct Convert<c10::IValue> {
  static c10::IValue from(const c10::IValue& value, std::size_t) { return value; }
};
template <>
struct Convert<int64_t> {
  static int64_t from(const c10::IValue& value, std::size_t parameter) {
    if (value.isInt()) return value.toInt();
    refuse_value(parameter, "an int", value);
  }
};
template <>
struct Convert<double> {
  static double from(const c10::IValue& value, std::size_t parameter) {
    if (value.isDouble()) return value.toDouble();
    if (value.isInt()) return static_cast<double>(value.toInt());
    refuse_value(parameter, "a number", value);
  }
};
template <>
struct Convert<bool> {
  static bool from(const c10::IValue& value, std::size_t parameter) {
    if (value.isBool()) return value.toBool();
    refuse_value(parameter, "a bool", value);
  }
};
template <>
struct Convert<std::string> {
  static std::string from(const c10::IValue& value, std::size_t parameter) {
    if (value.isString()) return value.toStringRef();
    refuse_value(parameter, "a string", value);
  }
};
template <typename T>
struct Convert<std::optional<T>> {
  static std::optional<T> from(const c10::IValue& value, std::size_t parameter) {
    if (value.isNone()) return std::nullopt;
    return Convert<T>::from(value, parameter);
  }
};
template <typename T>
struct Convert<std::vector<T>> {
  static std::vector<T> from(const c10::IValue& value, std::size_t parameter) {
    std::vector<T> result;
    if (value.isTuple()) {
      for (const auto& element : value.toTupleRef().elements()) {
        result.push_back(Convert<T>::from(element, parameter));
      }
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        result.push_back(Convert<T>::from(element, parameter));
      }
    } else {
      refuse_value(parameter, "a list or tuple", value);
    }
    return result;
  }
};

}  // namespace stagecraft::detail
