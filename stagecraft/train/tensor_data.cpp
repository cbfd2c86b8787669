#include "stagecraft/train/tensor_data.h"

#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/train/state_file.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

TensorData TensorData::read(const std::string& path, double held_out) {
  return TensorData(detail::read_tensor_file(path), held_out);
}

TensorData::TensorData(NamedTensors tensors, double held_out) : tensors_(std::move(tensors)) {
  require<ArgumentError>(held_out >= 0 && held_out < 1,
                         "expected a held-out share from 0 to below 1, got {}", held_out);
  require<ArgumentError>(!tensors_.empty(), "expected at least one tensor of examples, got none");
  int64_t rows = -1;
  for (auto& [name, tensor] : tensors_) {
    require<ArgumentError>(tensor.dim() > 0 && tensor.size(0) > 0,
                           "{}: expected rows of examples, got {}", name, describe(tensor));
    if (rows < 0) rows = tensor.size(0);
    require<ArgumentError>(tensor.size(0) == rows,
                           "{}: expected {} rows, as in the other tensors, got {}", name, rows,
                           tensor.size(0));
    tensor = tensor.contiguous();
  }
  training_ = rows - static_cast<int64_t>(static_cast<double>(rows) * held_out);
  evaluation_ = rows - training_;
}

uint64_t TensorData::checksum() const {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) {
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    sum = sum * 31 + detail::checksum({bytes, tensor.nbytes()});
    const std::string type = name + describe(tensor);
    sum = sum * 31 + detail::checksum(std::as_bytes(std::span(type)));
  }
  return sum;
}

TensorRows::TensorRows(NamedTensors tensors, int64_t first, int64_t count, uint64_t seed)
    : tensors_(std::move(tensors)), first_(first), count_(count), seed_(seed) {
  require<ArgumentError>(count >= 1, "expected at least one row of examples, got {}", count);
}

void TensorRows::set_position(int64_t position) {
  require<ArgumentError>(position >= 0, "expected a position of at least 0, got {}", position);
  position_ = position;
}

void TensorRows::start_pass(int64_t pass) {
  pass_ = pass;
  order_.resize(static_cast<std::size_t>(count_));
  std::iota(order_.begin(), order_.end(), first_);
  const uint64_t seed = mix_seed(seed_, static_cast<uint64_t>(pass), 0, kWholeModel);
  for (std::size_t i = order_.size(); i-- > 1;) {
    std::swap(order_[i], order_[mix_seed(seed, 0, i, kWholeModel) % (i + 1)]);
  }
}

NamedTensors TensorRows::draw(int64_t rows) {
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < rows; ++i, ++position_) {
    if (position_ / count_ != pass_) start_pass(position_ / count_);
    chosen.push_back(order_[static_cast<std::size_t>(position_ % count_)]);
  }
  const at::Tensor index = at::from_blob(chosen.data(), {rows}, at::kLong);
  NamedTensors result;
  for (const auto& [name, tensor] : tensors_) {
    result.emplace_back(name, at::index_select(tensor, 0, index));
  }
  return result;
}

}  // namespace stagecraft
