#include "stagecraft/tree/describe.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include <ATen/core/Dict.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {
namespace {

constexpr std::size_t kMaxElements = 16;
constexpr std::size_t kMaxText = 60;
constexpr int kMaxDepth = 8;

std::string describe_at(const c10::IValue& value, int depth);

template <typename Elements, typename F>
std::string join(const Elements& elements, F&& text_of) {
  std::string out;
  std::size_t shown = 0;
  for (const auto& element : elements) {
    if (shown > 0) out += ", ";
    if (shown == kMaxElements) return out + fmt::format("... {} more", elements.size() - shown);
    out += text_of(element);
    ++shown;
  }
  return out;
}

std::string describe_container(const c10::IValue& value, int depth) {
  if (depth > kMaxDepth) return "...";
  const auto element_text = [&](const c10::IValue& element) {
    return describe_at(element, depth + 1);
  };
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return '(' + join(elements, element_text) + (elements.size() == 1 ? ",)" : ")");
  }
  if (value.isList()) return '[' + join(value.toListRef(), element_text) + ']';
  return '{' +
         join(value.toGenericDict(),
              [&](const auto& entry) {
                return describe_at(entry.key(), depth + 1) + ": " +
                       describe_at(entry.value(), depth + 1);
              }) +
         '}';
}

// Never as an integer: 1.0, not 1.
std::string describe_double(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

std::string describe_text(const std::string& text) {
  if (text.size() <= kMaxText) return quote(text);
  return fmt::format("{}... {} bytes", quote(text.substr(0, kMaxText)), text.size());
}

std::string describe_at(const c10::IValue& value, int depth) {
  if (value.isTensor()) return describe(value.toTensor());
  if (value.isTuple() || value.isList() || value.isGenericDict()) {
    return describe_container(value, depth);
  }
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return fmt::format("{}", value.toInt());
  if (value.isDouble()) return describe_double(value.toDouble());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return fmt::format("{}{:+}j", number.real(), number.imag());
  }
  if (value.isString()) return describe_text(value.toStringRef());
  if (value.isDevice()) return "device " + value.toDevice().str();
  if (const auto opaque = find_opaque<Opaque>(value)) return opaque->describe();
  return value.tagKind();
}

}  // namespace

std::string describe(const c10::IValue& value) {
  return describe_at(value, 0);
}

std::string dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::ComplexHalf:
      return "complex32";
    case c10::ScalarType::ComplexFloat:
      return "complex64";
    case c10::ScalarType::ComplexDouble:
      return "complex128";
    default: {
      // Bool, BFloat16, Float8_e5m2, UInt16, ...: torch's name in lower case is the usual one.
      std::string name = c10::toString(dtype);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
        return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      });
      return name;
    }
  }
}

std::optional<c10::ScalarType> find_dtype(std::string_view name) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtype != c10::ScalarType::Undefined && dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace stagecraft
