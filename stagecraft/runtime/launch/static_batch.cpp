#include "stagecraft/runtime/launch/static_batch.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::detail {

namespace {

using Tensors = std::vector<at::Tensor>;

void add_tensors(const c10::IValue& value, Tensors& tensors) {
  for (const c10::IValue& leaf : tree::leaves(value)) {
    if (leaf.isTensor() && leaf.toTensor().defined()) tensors.push_back(leaf.toTensor());
  }
}

void add_tensors(const Kwargs& kwargs, Tensors& tensors) {
  for (const auto& [name, value] : kwargs) add_tensors(value, tensors);
}

/// The tensors of a batch by place. If all microbatches have the same number of tensors, a place
/// has one tensor of each; otherwise each tensor is a place of its own. The arguments of the loss
/// come last.
std::vector<Tensors> by_place(const Microbatches& batch, const Kwargs& loss_arguments) {
  std::vector<Tensors> microbatches(std::max(batch.inputs.size(), batch.targets.size()));
  for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
    for (const c10::IValue& value : batch.inputs[m].args) add_tensors(value, microbatches[m]);
    add_tensors(batch.inputs[m].kwargs, microbatches[m]);
  }
  for (std::size_t m = 0; m < batch.targets.size(); ++m) {
    add_tensors(batch.targets[m], microbatches[m]);
  }
  std::vector<Tensors> places;
  const bool is_regular = std::ranges::all_of(microbatches, [&](const Tensors& each) {
    return each.size() == microbatches.front().size();
  });
  for (std::size_t m = 0; m < microbatches.size(); ++m) {
    for (std::size_t i = 0; i < microbatches[m].size(); ++i) {
      if (!is_regular) {
        places.push_back({microbatches[m][i]});
      } else {
        if (m == 0) places.emplace_back();
        places[i].push_back(microbatches[m][i]);
      }
    }
  }
  Tensors of_loss;
  add_tensors(loss_arguments, of_loss);
  for (at::Tensor& tensor : of_loss) places.push_back({std::move(tensor)});
  return places;
}

// Whether the tensors are chunks of one tensor that follow each other in memory.
bool is_in_a_row(std::span<const at::Tensor> tensors) {
  int64_t next = tensors.front().storage_offset();
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.storage_offset() != next ||
        !tensor.storage().is_alias_of(tensors.front().storage()) ||
        tensor.scalar_type() != tensors.front().scalar_type()) {
      return false;
    }
    next += tensor.numel();
  }
  return true;
}

int64_t count_elements(std::span<const at::Tensor> tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

at::Tensor in_one(std::span<const at::Tensor> tensors) {
  return tensors.front().as_strided({count_elements(tensors)}, {1},
                                    tensors.front().storage_offset());
}

/// The same structure, with tensors that are taken from `tensors` one after the other.
c10::IValue replace_tensors(const c10::IValue& value, const Tensors& tensors, std::size_t& next) {
  return tree::map(value, [&](const c10::IValue& leaf) -> c10::IValue {
    return leaf.isTensor() && leaf.toTensor().defined() ? tensors[next++] : leaf;
  });
}

Kwargs replace_tensors(const Kwargs& kwargs, const Tensors& tensors, std::size_t& next) {
  Kwargs result;
  for (const auto& [name, value] : kwargs) {
    result.set(name, replace_tensors(value, tensors, next));
  }
  return result;
}

}  // namespace

StaticBatch::StaticBatch(const Microbatches& batch, const Kwargs& loss_arguments,
                         c10::Device device) {
  const c10::NoGradGuard no_grad;
  const std::vector<Tensors> given = by_place(batch, loss_arguments);
  for (const Tensors& tensors : given) {
    Place& place = places_.emplace_back();
    if (tensors.size() > 1 && is_in_a_row(tensors)) {
      place.all = at::empty({count_elements(tensors)}, tensors.front().options().device(device));
      int64_t begin = 0;
      for (const at::Tensor& tensor : tensors) {
        place.each.push_back(place.all.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
        begin += tensor.numel();
      }
      continue;
    }
    for (const at::Tensor& tensor : tensors) {
      place.each.push_back(at::empty_like(tensor, tensor.options().device(device)));
    }
  }
  // Back from places to microbatches, in the order of by_place.
  const std::size_t microbatches = std::max(batch.inputs.size(), batch.targets.size());
  Tensors of_loss;
  Tensors flat;
  std::size_t count_loss = 0;
  for (const auto& [name, value] : loss_arguments) {
    Tensors some;
    add_tensors(value, some);
    count_loss += some.size();
  }
  const std::size_t places = places_.size() - count_loss;
  for (std::size_t i = places; i < places_.size(); ++i) of_loss.push_back(places_[i].each.front());
  const bool is_regular =
      std::all_of(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(places),
                  [&](const Place& place) { return place.each.size() == microbatches; });
  if (is_regular) {
    for (std::size_t m = 0; m < microbatches; ++m) {
      for (std::size_t i = 0; i < places; ++i) flat.push_back(places_[i].each[m]);
    }
  } else {
    for (std::size_t i = 0; i < places; ++i) flat.push_back(places_[i].each.front());
  }
  std::size_t next = 0;
  batch_.inputs.resize(batch.inputs.size());
  batch_.targets.resize(batch.targets.size());
  for (std::size_t m = 0; m < microbatches; ++m) {
    if (m < batch.inputs.size()) {
      for (const c10::IValue& value : batch.inputs[m].args) {
        batch_.inputs[m].args.push_back(replace_tensors(value, flat, next));
      }
      batch_.inputs[m].kwargs = replace_tensors(batch.inputs[m].kwargs, flat, next);
    }
    if (m < batch.targets.size()) batch_.targets[m] = replace_tensors(batch.targets[m], flat, next);
  }
  SC_ASSERT(next == flat.size());
  next = 0;
  loss_arguments_ = replace_tensors(loss_arguments, of_loss, next);
  batch_.weights = batch.weights;
  batch_.rows = batch.rows;
}

void StaticBatch::copy_from(const Microbatches& batch, const Kwargs& loss_arguments) {
  const c10::NoGradGuard no_grad;
  const std::vector<Tensors> given = by_place(batch, loss_arguments);
  SC_ASSERT(given.size() == places_.size());
  Tensors to;
  Tensors from;
  for (std::size_t i = 0; i < given.size(); ++i) {
    Place& place = places_[i];
    if (place.all.defined() && is_in_a_row(given[i])) {
      to.push_back(place.all);
      from.push_back(in_one(given[i]));
      continue;
    }
    to.insert(to.end(), place.each.begin(), place.each.end());
    from.insert(from.end(), given[i].begin(), given[i].end());
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
}

}  // namespace stagecraft::detail
