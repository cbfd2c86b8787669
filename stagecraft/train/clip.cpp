#include "stagecraft/train/clip.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/check.h"
#include "stagecraft/shard/flat_layout.h"

namespace stagecraft {

namespace {

/// The positions of the tensors of each device, other than the CPU.
std::map<c10::DeviceIndex, std::vector<std::size_t>> by_device(
    const std::vector<at::Tensor>& tensors) {
  std::map<c10::DeviceIndex, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && !tensors[i].is_cpu()) {
      places[tensors[i].device().index()].push_back(i);
    }
  }
  return places;
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors,
                               const std::vector<std::size_t>& places) {
  std::vector<at::Tensor> selected;
  for (const std::size_t place : places) selected.push_back(tensors[place]);
  return selected;
}

}  // namespace

std::vector<at::Tensor> norms_of_grads(const std::vector<ModelState>& states) {
  std::vector<at::Tensor> grads(states.size());
  std::vector<at::Tensor> norms(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (!states[i].is_trained() || !states[i].tensor().grad().defined()) continue;
    grads[i] = states[i].tensor().grad().detach();
    if (grads[i].is_cpu()) norms[i] = at::linalg_vector_norm(grads[i], 2);
  }
  for (const auto& [device, places] : by_device(grads)) {
    std::vector<at::Tensor> of_device = at::_foreach_norm(select(grads, places), 2);
    for (std::size_t i = 0; i < places.size(); ++i) norms[places[i]] = std::move(of_device[i]);
  }
  return norms;
}

std::vector<at::Tensor> read_scalars(const std::vector<at::Tensor>& scalars) {
  std::vector<at::Tensor> read = scalars;
  for (const auto& [device, places] : by_device(scalars)) {
    // A few kernels for each dtype. Every floating type is exact in double.
    std::map<at::ScalarType, std::vector<std::size_t>> by_type;
    for (const std::size_t place : places) by_type[scalars[place].scalar_type()].push_back(place);
    std::vector<at::Tensor> wide;
    std::vector<std::size_t> order;
    for (const auto& [type, of_type] : by_type) {
      std::vector<at::Tensor> flat;
      for (const std::size_t place : of_type) flat.push_back(scalars[place].detach().reshape({1}));
      wide.push_back(at::cat(flat).to(at::kDouble));
      order.insert(order.end(), of_type.begin(), of_type.end());
    }
    const at::Tensor values = at::cat(wide).to(at::kCPU);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const at::Tensor& scalar = scalars[order[i]];
      read[order[i]] = values.select(0, static_cast<int64_t>(i))
                           .to(scalar.scalar_type())
                           .reshape(scalar.sizes());
    }
  }
  return read;
}

namespace {

/// The code fixes the order of the sum. It does not depend on the number of threads or the length
/// of a vector.
template <typename T>
double sum_of_squares(const T* values, int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <typename T>
void sum_blocks(const at::Tensor& grad, double* sums) {
  const T* const values = grad.const_data_ptr<T>();
  for (int64_t begin = 0; begin < grad.numel(); begin += kShardBlock) {
    *sums++ = sum_of_squares(values + begin, std::min(kShardBlock, grad.numel() - begin));
  }
}

}  // namespace

at::Tensor block_squares(const at::Tensor& grad) {
  const int64_t blocks = (grad.numel() + kShardBlock - 1) / kShardBlock;
  if (grad.is_cpu()) {
    at::Tensor sums = at::empty({blocks}, at::kDouble);
    if (grad.scalar_type() == at::kDouble) {
      sum_blocks<double>(grad.contiguous(), sums.mutable_data_ptr<double>());
    } else {
      sum_blocks<float>(grad.to(at::kFloat).contiguous(), sums.mutable_data_ptr<double>());
    }
    return sums;
  }
  // At least two rows, so that the device sums every row in the same way.
  at::Tensor rows = at::zeros({std::max<int64_t>(blocks, 2) * kShardBlock}, grad.options());
  rows.narrow(0, 0, grad.numel()).copy_(grad);
  return rows.to(at::kDouble).square().view({-1, kShardBlock}).sum(1).narrow(0, 0, blocks).cpu();
}

at::Tensor norm_of_blocks(const std::vector<at::Tensor>& sums) {
  double sum = 0;
  for (const at::Tensor& part : sums) {
    const double* const values = part.const_data_ptr<double>();
    for (int64_t i = 0; i < part.numel(); ++i) sum += values[i];
  }
  return at::scalar_tensor(std::sqrt(sum), at::kFloat);
}

double norm_of(const std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& norm : norms) {
    if (norm.defined()) defined.push_back(norm);
  }
  if (defined.empty()) return 0;
  return at::linalg_vector_norm(at::stack(defined), 2).item<double>();
}

double grad_norm(const std::vector<ModelState>& states) {
  return norm_of(read_scalars(norms_of_grads(states)));
}

void clip_grads(const std::vector<ModelState>& states, double norm, double most) {
  require<ArgumentError>(most > 0, "expected a norm above 0 to clip at, got {}", most);
  const double factor = most / (norm + 1e-6);
  if (!(factor < 1)) return;
  std::vector<at::Tensor> grads;
  for (const ModelState& state : states) {
    if (!state.is_trained()) continue;
    for (const at::Tensor& copy : state.copies) {
      if (copy.grad().defined()) grads.push_back(copy.grad().detach());
    }
  }
  if (!grads.empty()) at::_foreach_mul_(grads, factor);
}

const ModelState* find_infinite_grad(const std::vector<ModelState>& states) {
  for (const ModelState& state : states) {
    const at::Tensor grad = state.is_trained() ? state.tensor().grad() : at::Tensor();
    if (grad.defined() && !at::isfinite(grad).all().item<bool>()) return &state;
  }
  return nullptr;
}

std::string describe_infinite_grad(const std::string& name) {
  return "the gradient of " + name +
         " has elements that are infinite or NaN: training has diverged; try a lower learning "
         "rate, a longer warm-up or clipping";
}

}  // namespace stagecraft
