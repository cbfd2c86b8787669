#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

namespace stagecraft {

/// A value in one line for error messages: `Tensor[4, 8] float32 grad`, `None`, `3`, `"text"`,
/// `(Tensor[2] int64, {"mask": None})`. A device is named when it is not the CPU. Long strings and
/// containers are truncated.
std::string describe(const c10::IValue& value);

/// "float32", "int64", "bool", "bfloat16", ...
std::string dtype_name(c10::ScalarType dtype);
/// The inverse; nothing for an unknown name.
std::optional<c10::ScalarType> find_dtype(std::string_view name);

}  // namespace stagecraft
