#include "stagecraft/graph/run/saved_state.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/log.h"

namespace stagecraft {

SavedState::~SavedState() {
  try {
    restore();
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("a tensor could not be restored: ") + error.what());
  }
}

void SavedState::save(const at::Tensor& tensor) {
  // A second save would keep elements that the model has changed already.
  if (std::ranges::any_of(tensors_,
                          [&](const auto& saved) { return saved.first.is_same(tensor); })) {
    return;
  }
  const c10::NoGradGuard no_grad;
  tensors_.emplace_back(tensor, tensor.detach().clone());
}

void SavedState::save(const at::Generator& generator) {
  if (std::ranges::any_of(generators_,
                          [&](const auto& saved) { return saved.first == generator; })) {
    return;
  }
  at::Generator mine = generator;
  const std::lock_guard<std::mutex> lock(mine.mutex());
  generators_.emplace_back(mine, mine.get_state());
}

void SavedState::save_default_generator(c10::Device device) {
  save(at::globalContext().defaultGenerator(device));
}

void SavedState::restore() {
  const c10::NoGradGuard no_grad;
  // Restore the last saved tensor first: of two views of one memory, the earlier copy has the state
  // before all changes.
  std::ranges::reverse(tensors_);
  for (auto& [tensor, copy] : tensors_) {
    // A model may have changed its shape.
    if (!tensor.sizes().equals(copy.sizes())) tensor.resize_(copy.sizes());
    // A tensor that is unchanged is not written to, and keeps its version: graphs of autograd
    // outside may have saved it.
    if (!tensor.equal(copy)) tensor.detach().copy_(copy);
  }
  tensors_.clear();
  for (auto& [generator, state] : generators_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
  generators_.clear();
}

}  // namespace stagecraft
