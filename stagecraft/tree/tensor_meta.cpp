#include "stagecraft/tree/tensor_meta.h"

#include <cstddef>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {
namespace {

// Whether both strides reach the elements in the same way. The stride of a dimension of size 1 is
// never used. A tensor without elements uses no stride.
bool same_layout(const std::vector<int64_t>& shape, const std::vector<int64_t>& expected,
                 c10::IntArrayRef actual) {
  for (const int64_t size : shape) {
    if (size == 0) return true;
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 1 && expected[d] != actual[d]) return false;
  }
  return true;
}

bool has_strides(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_nested() && tensor.layout() == c10::kStrided;
}

bool is_contiguous(const TensorMeta& meta) {
  std::vector<int64_t> stride(meta.shape.size(), 1);
  for (std::size_t d = meta.shape.size(); d-- > 1;) stride[d - 1] = stride[d] * meta.shape[d];
  return same_layout(meta.shape, meta.stride, stride);
}

}  // namespace

TensorMeta TensorMeta::of(const at::Tensor& tensor) {
  if (!has_strides(tensor)) [[unlikely]] {
    throw ArgumentError(fmt::format("{} has no shape and stride", describe(tensor)));
  }
  return {tensor.sizes().vec(), tensor.scalar_type(), tensor.strides().vec(), tensor.device(),
          tensor.requires_grad()};
}

std::string describe(const TensorMeta& meta) {
  std::string out =
      fmt::format("Tensor[{}] {}", fmt::join(meta.shape, ", "), dtype_name(meta.dtype));
  if (!is_contiguous(meta)) out += fmt::format(" stride [{}]", fmt::join(meta.stride, ", "));
  if (meta.device != c10::Device(c10::kCPU)) out += " " + meta.device.str();
  if (meta.requires_grad) out += " grad";
  return out;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "Tensor undefined";
  if (has_strides(tensor)) return describe(TensorMeta::of(tensor));
  const std::string kind = tensor.is_nested() ? "nested" : "sparse";
  const std::string shape =
      tensor.is_nested() ? "?" : fmt::format("{}", fmt::join(tensor.sizes(), ", "));
  return fmt::format("Tensor[{}] {} {}", shape, dtype_name(tensor.scalar_type()), kind);
}

void validate(std::string_view what, const TensorMeta& expected, const at::Tensor& actual) {
  if (!has_strides(actual)) [[unlikely]] {
    throw MetadataError(
        fmt::format("{}: expected {}, got {}", what, describe(expected), describe(actual)));
  }
  require<MetadataError>(actual.sizes() == c10::IntArrayRef(expected.shape),
                         "{}: shape mismatch: expected [{}], got [{}]", what,
                         fmt::join(expected.shape, ", "), fmt::join(actual.sizes(), ", "));
  require<MetadataError>(actual.scalar_type() == expected.dtype,
                         "{}: dtype mismatch: expected {}, got {}", what,
                         dtype_name(expected.dtype), dtype_name(actual.scalar_type()));
  require<MetadataError>(same_layout(expected.shape, expected.stride, actual.strides()),
                         "{}: stride mismatch: expected [{}], got [{}]", what,
                         fmt::join(expected.stride, ", "), fmt::join(actual.strides(), ", "));
}

void validate(std::string_view what, std::span<const TensorMeta> expected,
              std::span<const at::Tensor> actual) {
  require<MetadataError>(actual.size() == expected.size(),
                         "{}: number of values mismatch: expected {}, got {}", what,
                         expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    validate(fmt::format("{}: value {}", what, i), expected[i], actual[i]);
  }
}

}  // namespace stagecraft
