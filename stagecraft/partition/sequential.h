#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

namespace detail {

/// The first layer of each of `stages` stages, given the bytes of each layer: about the same bytes
/// in each stage, and at least one layer. ArgumentError unless 1 <= stages <= layers.
std::vector<std::size_t> balance_layers(const std::vector<int64_t>& bytes, int32_t stages);
/// ArgumentError unless `begins` starts with 0 and ascends below `layers`.
void check_begins(const std::vector<std::size_t>& begins, std::size_t layers);
/// ArgumentError unless the arguments are one tensor.
at::Tensor get_one_tensor(const Args& args, const Kwargs& kwargs);

}  // namespace detail

/// Stages of a torch::nn::Sequential whose layers take and return one tensor, without capture.
/// Stage k has the layers from begins[k] on. Parameters keep their names. ArgumentError unless
/// `begins` starts with 0 and ascends below the number of layers.
template <typename S>
std::vector<StageBody> sequential_stages(S sequential, const std::vector<std::size_t>& begins) {
  const std::size_t layers = sequential->size();
  detail::check_begins(begins, layers);
  std::vector<StageBody> stages;
  for (std::size_t k = 0; k < begins.size(); ++k) {
    const std::size_t first = begins[k];
    const std::size_t last = k + 1 < begins.size() ? begins[k + 1] : layers;
    StageBody body;
    for (std::size_t i = first; i < last; ++i) {
      const auto layer = sequential->ptr(i);
      const std::string prefix = sequential->named_children().pairs()[i].first + ".";
      for (const auto& item : layer->named_parameters()) {
        body.parameters.emplace_back(prefix + item.key(), item.value());
      }
      for (const auto& item : layer->named_buffers()) {
        body.buffers.emplace_back(prefix + item.key(), item.value());
      }
    }
    body.forward = [sequential, first, last](const Args& args, const Kwargs& kwargs) mutable {
      at::Tensor x = detail::get_one_tensor(args, kwargs);
      for (std::size_t i = first; i < last; ++i) {
        x = (sequential->begin() + static_cast<std::ptrdiff_t>(i))->template forward<at::Tensor>(x);
      }
      return c10::IValue(x);
    };
    stages.push_back(std::move(body));
  }
  return stages;
}

/// The same, with `stages` stages of about the same bytes of parameters.
template <typename S>
std::vector<StageBody> sequential_stages(S sequential, int32_t stages) {
  std::vector<int64_t> bytes;
  for (std::size_t i = 0; i < sequential->size(); ++i) {
    int64_t sum = 0;
    for (const at::Tensor& p : sequential->ptr(i)->parameters()) {
      sum += static_cast<int64_t>(p.nbytes());
    }
    bytes.push_back(sum);
  }
  return sequential_stages(std::move(sequential), detail::balance_layers(bytes, stages));
}

}  // namespace stagecraft
