#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/stage/random_generators.h"

namespace stagecraft::detail {

/// The seeds of the random scopes of one captured step, as functions of the step. A stage's scope
/// has mix_seed(seed, step, microbatch, stage). The scope of an operator that has a name in the
/// whole model has a seed that is derived from mix_seed(seed, step, microbatch, kWholeModel).
class CapturedSeeds final : public CapturedDraws {
 public:
  struct Step {
    uint64_t seed = 0;
    uint64_t draw = 0;
  };

  /// `device` must outlive the capture.
  CapturedSeeds(GraphDevice& device, const Step& step, int32_t microbatches, int32_t stages);

  c10::Device device() const override { return device_.device(); }
  /// Error for a scope whose seed is none of these.
  std::size_t open(const ScopeSeed& seed) override;
  at::Generator continue_at(std::size_t sequence) override {
    return device_.continue_sequence(sequence);
  }
  at::Tensor seeds_of(std::size_t first, std::size_t count) override {
    return device_.sequence_seeds(first, count);
  }

  /// The seeds of all sequences in a different step.
  std::vector<uint64_t> seeds(const Step& step) const;

 private:
  struct Origin {
    uint64_t microbatch = 0;
    uint64_t place = 0;                              // a stage, or kWholeModel
    std::optional<uint64_t> derived = std::nullopt;  // the place of the derivation
  };

  GraphDevice& device_;
  std::unordered_map<uint64_t, Origin> known_;  // by seed, in the step that is captured
  std::vector<Origin> origins_;                 // by sequence
};

}  // namespace stagecraft::detail
