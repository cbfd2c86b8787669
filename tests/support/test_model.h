#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/tied_weights.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// A model in stages, for tests. Copies share the parameters.
struct TestModel {
  std::vector<StageBody> bodies;           ///< by stage
  std::vector<StageOptions> options = {};  ///< by stage; empty: the usual
  Ports ports{1};
  Loss loss = {};
  std::vector<TiedWeight> ties = {};
  /// Bodies that leave all gradients to autograd, for references, where `bodies` do not.
  std::vector<StageBody> plain_bodies = {};

  int32_t num_stages() const { return static_cast<int32_t>(bodies.size()); }
  /// New stages, which share the parameters too.
  std::vector<Stage> make_stages() const;
};

/// A parameter of a stage.
struct StageParameter {
  StageId stage;
  std::string name;
  at::Tensor tensor;
};

/// All that the bodies name, in the order of the stages; a tensor that several stages hold comes
/// several times.
std::vector<StageParameter> parameters_of(const std::vector<StageBody>& bodies);

/// The gradients of those, undefined where there is none, and takes them away from the parameters.
std::vector<at::Tensor> take_grads(const std::vector<StageBody>& bodies);

}  // namespace stagecraft
