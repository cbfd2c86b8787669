#include "stagecraft/attention/describe_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft::detail {
namespace {

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kBool:
      return "bool";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    default:
      return c10::toString(type);
  }
}

}  // namespace

std::string describe(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  return dtype_name(tensor.scalar_type()) + describe(tensor.sizes());
}

}  // namespace stagecraft::detail
