#include "stagecraft/train/adamw.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

/// The tensors that one call of torch's fused AdamW updates.
struct AdamW::Batch {
  c10::Device device;
  c10::ScalarType dtype;
  bool decays;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> squares;
  std::vector<at::Tensor> updates;
  std::vector<std::pair<at::Tensor, at::Tensor>> halves = {};  // parameters, and their copies
};

namespace {

template <typename Batch>
Batch& find_or_add(std::vector<Batch>& batches, const at::Tensor& parameter, bool decays) {
  for (Batch& batch : batches) {
    if (batch.device == parameter.device() && batch.dtype == parameter.scalar_type() &&
        batch.decays == decays) {
      return batch;
    }
  }
  return batches.emplace_back(
      Batch{parameter.device(), parameter.scalar_type(), decays, {}, {}, {}, {}, {}, {}});
}

/// Copies elements of the parameter that were written since the last update to the float32 copy.
void take_writes(const at::Tensor& parameter, const at::Tensor& master) {
  const at::Tensor rounded = master.to(parameter.scalar_type());
  // Elements on a device are not compared first, because the host would wait for the result.
  if (parameter.is_cpu() && at::equal(rounded, parameter)) return;
  master.copy_(at::where(at::ne(rounded, parameter), parameter.to(at::kFloat), master));
}

/// The gradient with the strides of the parameter: torch's fused AdamW processes all tensors of a
/// parameter in the order of memory.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& grad) {
  if (grad.strides() == parameter.strides()) return grad;
  return at::empty_like(parameter).copy_(grad);
}

}  // namespace

AdamW::AdamW(std::vector<ModelState> states, const AdamWOptions& options) : options_(options) {
  for (const double beta : {options.beta1, options.beta2}) {
    require<ArgumentError>(beta >= 0 && beta < 1, "AdamW: expected betas from 0 to below 1, got {}",
                           beta);
  }
  require<ArgumentError>(options.epsilon >= 0 && options.weight_decay >= 0,
                         "AdamW: expected epsilon and weight decay of at least 0, got {} and {}",
                         options.epsilon, options.weight_decay);
  std::size_t most_copies = 1;
  for (ModelState& state : states) {
    if (!state.is_trained()) continue;
    most_copies = std::max(most_copies, state.copies.size());
    states_.push_back(std::move(state));
  }
  moments_.resize(most_copies, std::vector<Moments>(states_.size()));
  for (std::size_t i = 0; i < states_.size(); ++i) {
    for (std::size_t c = 0; c < states_[i].copies.size(); ++c) {
      const at::Tensor parameter = states_[i].copies[c].detach();
      const at::Tensor master = has_master(parameter) ? parameter.to(at::kFloat) : at::Tensor();
      const at::Tensor& updated = master.defined() ? master : parameter;
      moments_[c][i] = {at::zeros_like(updated), at::zeros_like(updated),
                        at::zeros({}, parameter.options().dtype(at::kFloat)), master};
    }
  }
}

bool AdamW::has_master(const at::Tensor& parameter) const {
  return options_.master_weights && at::isReducedFloatingType(parameter.scalar_type());
}

std::vector<AdamW::Batch> AdamW::batches() const {
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    for (std::size_t c = 0; c < states_[i].copies.size(); ++c) {
      const at::Tensor& parameter = states_[i].copies[c];
      if (!parameter.grad().defined()) continue;
      const Moments& moments = moments_[c][i];
      const bool is_half = moments.master.defined();
      const at::Tensor& updated = is_half ? moments.master : parameter;
      const at::Tensor grad = parameter.grad().detach();
      Batch& batch = find_or_add(batches, updated, states_[i].num_dims() >= 2);
      if (is_half) {
        take_writes(parameter, moments.master);
        batch.halves.emplace_back(parameter, moments.master);
      }
      batch.parameters.push_back(updated);
      batch.grads.push_back(laid_out_like(updated, is_half ? grad.to(at::kFloat) : grad));
      batch.averages.push_back(moments.average);
      batch.squares.push_back(moments.average_square);
      batch.updates.push_back(moments.updates);
    }
  }
  return batches;
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const Batch& batch : batches()) {
    at::_foreach_add_(batch.updates, 1);
    at::_fused_adamw_(batch.parameters, batch.grads, batch.averages, batch.squares, {},
                      batch.updates, learning_rate, options_.beta1, options_.beta2,
                      batch.decays ? options_.weight_decay : 0.0, options_.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (const auto& [parameter, master] : batch.halves) parameter.copy_(master);
  }
}

void AdamW::step(const OnDevice& numbers) {
  const at::NoGradGuard no_grad;
  std::optional<at::Tensor> divisor;
  if (numbers.divisor.defined()) divisor = numbers.divisor;
  const at::Tensor counted = at::rsub(numbers.is_skipped, 1);
  for (const Batch& batch : batches()) {
    at::_foreach_add_(batch.updates, counted);
    at::_fused_adamw_(batch.parameters, batch.grads, batch.averages, batch.squares, {},
                      batch.updates, numbers.learning_rate, options_.beta1, options_.beta2,
                      batch.decays ? options_.weight_decay : 0.0, options_.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false, divisor, numbers.is_skipped);
    for (const auto& [parameter, master] : batch.halves) parameter.copy_(master);
  }
}

void AdamW::zero_grad() {
  for (const ModelState& state : states_) {
    for (const at::Tensor& copy : state.copies) copy.mutable_grad().reset();
  }
}

void AdamW::spread_moments() {
  for (std::size_t c = 1; c < moments_.size(); ++c) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const Moments& copy = moments_[c][i];
      if (!copy.average.defined()) continue;
      copy.average.copy_(moments()[i].average);
      copy.average_square.copy_(moments()[i].average_square);
      copy.updates.copy_(moments()[i].updates);
      if (copy.master.defined()) copy.master.copy_(moments()[i].master);
    }
  }
}

}  // namespace stagecraft
