#include "stagecraft/shard/shard_unit.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/shard/storage_memory.h"

namespace stagecraft {
namespace {

std::vector<int64_t> numels_of(const std::vector<ShardUnit::Parameter>& parameters) {
  std::vector<int64_t> numels;
  for (const ShardUnit::Parameter& parameter : parameters) {
    numels.push_back(parameter.tensor.numel());
  }
  return numels;
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

ShardUnit::ShardUnit(std::vector<StageId> holders, int32_t number,
                     std::vector<Parameter> parameters, bool is_tied, const ShardGroup& group,
                     ShardKind kind)
    : holders_(std::move(holders)),
      number_(number),
      parameters_(std::move(parameters)),
      layout_(numels_of(parameters_), group.size()),
      is_tied_(is_tied),
      own_(group.own),
      kind_(kind),
      segments_(layout_.segments(group.own)),
      has_grad_(segments_.size(), false) {
  SC_ASSERT(!holders_.empty() && !parameters_.empty());
  SC_ASSERT(!is_tied || parameters_.size() == 1);
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters_) {
    SC_ASSERT(parameter.tensor.numel() > 0);
    SC_ASSERT(parameter.tensor.scalar_type() == parameters_.front().tensor.scalar_type() &&
              parameter.tensor.device() == parameters_.front().tensor.device());
    require<ArgumentError>(parameter.tensor.is_non_overlapping_and_dense(),
                           "stage {}: parameter \"{}\" cannot be sharded, because its elements are "
                           "not dense in memory; make it contiguous",
                           stage().value(), parameter.name);
  }
  const at::Tensor& first = parameters_.front().tensor;
  flat_ = at::zeros({layout_.whole()}, first.options().requires_grad(false));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& tensor = parameters_[i].tensor;
    const at::Tensor view = flat_.as_strided(tensor.sizes(), tensor.strides(), layout_.offset(i));
    view.copy_(tensor.detach());
    tensor.set_data(view);
  }
  const at::Tensor own = flat_.narrow(0, own_ * layout_.piece(), layout_.piece());
  piece_ = kind == ShardKind::kParameters ? own.clone() : own;
  if (kind == ShardKind::kParameters) release();
}

at::Tensor ShardUnit::value(std::size_t segment) const {
  return piece_.narrow(0, segments_[segment].at, segments_[segment].size());
}

at::Tensor ShardUnit::grad(std::size_t segment) const {
  const ShardSegment& part = segments_[segment];
  if (kind_ != ShardKind::kOptimizer) {
    if (!has_grad_[segment] || !piece_.grad().defined()) return {};
    return piece_.grad().narrow(0, part.at, part.size());
  }
  const at::Tensor& parameter = parameters_[part.parameter].tensor;
  at::Tensor grad = parameter.grad();
  if (!grad.defined()) return {};
  if (grad.strides() != parameter.strides()) grad = at::empty_like(parameter).copy_(grad);
  return in_memory_order(grad).narrow(0, part.begin, part.size());
}

void ShardUnit::allocate() {
  if (is_allocated_) return;
  allocate_memory(flat_, flat_.nbytes());
  is_allocated_ = true;
  versions_.clear();
  for (const Parameter& parameter : parameters_) versions_.push_back(parameter.tensor._version());
  const at::NoGradGuard no_grad;
  flat_.narrow(0, own_ * layout_.piece(), layout_.piece()).copy_(piece_);
}

// The tensors keep their storage, so what autograd has saved of them is valid again when the
// storage has its elements again.
void ShardUnit::release() {
  if (!is_allocated_) return;
  release_memory(flat_, describe());
  is_allocated_ = false;
}

void ShardUnit::keep() {
  const at::NoGradGuard no_grad;
  piece_.copy_(flat_.narrow(0, own_ * layout_.piece(), layout_.piece()));
}

void ShardUnit::check() const {
  const c10::StorageImpl* const own = flat_.storage().unsafeGetStorageImpl();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    require<ArgumentError>(tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == own &&
                               tensor.storage_offset() == layout_.offset(i),
                           "stage {}: the data of parameter \"{}\" was replaced after its replicas "
                           "were sharded; write "
                           "to it in place instead",
                           stage().value(), parameters_[i].name);
  }
}

void ShardUnit::check_unwritten() const {
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    require<ArgumentError>(parameters_[i].tensor._version() == versions_[i],
                           "stage {}: parameter \"{}\" was written in place while its stage was "
                           "unsharded in a step, and the write would be lost; write to it in "
                           "Runner::with_whole_parameters",
                           stage().value(), parameters_[i].name);
  }
}

int64_t ShardUnit::piece_bytes() const {
  return layout_.piece() * static_cast<int64_t>(piece_.element_size());
}

std::string ShardUnit::describe() const {
  std::string names;
  for (const Parameter& parameter : parameters_) {
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return fmt::format(
      "stage {}: its parameters ({}) are sharded over the replicas: this replica has a piece of "
      "them outside of UNSHARD and RESHARD; read and write them in Runner::with_whole_parameters",
      stage().value(), names);
}

}  // namespace stagecraft
