#include "stagecraft/exported/payload.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/complex.h>

#include "stagecraft/exported/read_program.h"

namespace stagecraft::exported {

namespace {

/// The alignment of the largest element type, because one piece may have tensors of several types.
constexpr uintptr_t kAlignment = alignof(c10::complex<double>);

int64_t plain(const ZipFile& file, const std::string& name, const RawSymbol& symbol) {
  if (!symbol.number || *symbol.number < 0) {
    file.fail(fmt::format("{}: expected a whole number of 0 or more, got '{}'", name,
                          symbol.number ? std::to_string(*symbol.number) : symbol.expression));
  }
  return *symbol.number;
}

}  // namespace

FilePayload::FilePayload(const ZipFile& file, const std::string& program) : file_(file) {
  for (const char* kind : {"weights", "constants"}) {
    const std::string folder = fmt::format("data/{}/", kind);
    const std::string config = fmt::format("{}{}_{}_config.json", folder, program, kind);
    if (!file.has(config)) continue;
    for (auto& [name, raw] : read_payloads(file.text(config), config)) {
      entries_.insert_or_assign(name, Entry{folder, std::move(raw)});
    }
  }
}

c10::Storage FilePayload::storage_of(const std::string& piece, std::span<std::byte> bytes) const {
  const auto found = storages_.find(piece);
  if (found != storages_.end()) return found->second;
  const auto size = static_cast<int64_t>(bytes.size());
  at::Tensor whole;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment == 0) {
    whole = at::from_blob(
        bytes.data(), {size}, [memory = file_.memory()](void*) {}, at::kByte);
  } else {
    // The writer did not align the tensor, so it must be copied.
    whole = at::from_blob(bytes.data(), {size}, at::kByte).clone();
  }
  return storages_.emplace(piece, whole.storage()).first->second;
}

Payload::Found FilePayload::get(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) file_.fail(fmt::format("it has no tensor for {}", name));
  const RawPayload& raw = found->second.raw;
  const std::string piece = found->second.folder + raw.path;
  const std::span<std::byte> bytes = file_.member(piece);
  if (raw.is_pickled || !raw.tensor || !raw.tensor->is_strided) {
    file_.fail(
        fmt::format("{}: only strided tensors can be read, and this tensor is not one", name));
  }
  const RawTensor& meta = *raw.tensor;
  if (meta.sizes.size() != meta.strides.size()) {
    file_.fail(fmt::format("{}: it has {} sizes and {} strides", name, meta.sizes.size(),
                           meta.strides.size()));
  }
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  const auto width = static_cast<int64_t>(c10::elementSize(meta.dtype));
  const int64_t offset = plain(file_, name, meta.offset);
  int64_t last = offset;  // the last element
  bool is_empty = false;
  bool overflows = false;
  for (std::size_t d = 0; d < meta.sizes.size(); ++d) {
    sizes.push_back(plain(file_, name, meta.sizes[d]));
    strides.push_back(plain(file_, name, meta.strides[d]));
    is_empty = is_empty || sizes.back() == 0;
    int64_t step = 0;
    overflows =
        overflows ||
        __builtin_mul_overflow(std::max<int64_t>(sizes.back() - 1, 0), strides.back(), &step) ||
        __builtin_add_overflow(last, step, &last);
  }
  // A tensor can have more elements than bytes if a stride is 0. Their number must fit into an
  // int64 even then.
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    overflows = overflows || __builtin_mul_overflow(elements, size, &elements);
  }
  const auto capacity = static_cast<int64_t>(bytes.size()) / width;
  if (overflows || (is_empty ? offset > capacity : last >= capacity)) {
    file_.fail(
        fmt::format("{}: it has [{}] elements of {} bytes, which do not fit into the {} "
                    "bytes of {}",
                    name, fmt::join(sizes, ", "), width, bytes.size(), piece));
  }
  at::Tensor tensor = at::empty({0}, at::TensorOptions(meta.dtype).device(c10::kCPU));
  tensor.set_(storage_of(piece, bytes), offset, sizes, strides);
  tensor.set_requires_grad(meta.requires_grad &&
                           (tensor.is_floating_point() || tensor.is_complex()));
  return {std::move(tensor), piece};
}

}  // namespace stagecraft::exported
