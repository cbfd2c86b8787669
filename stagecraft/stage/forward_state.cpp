#include "stagecraft/stage/forward_state.h"

#include <exception>
#include <mutex>
#include <string>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/log.h"

namespace stagecraft {

namespace {

at::Tensor state_of(at::Generator generator) {
  // Ranks that are threads share the default generators.
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

ForwardState::Autocast ForwardState::autocast_of(c10::DeviceType type) {
  return {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
}

ForwardState::ForwardState(const What& what) {
  // Autocast has a state for each type of device. A stage on a GPU may also compute on the CPU.
  for (const c10::DeviceType type : {c10::kCPU, what.device.type()}) {
    if (!autocast_.empty() && type == c10::kCPU) continue;
    autocast_.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }
  if (what.has_generators) {
    const auto add = [&](c10::Device device) {
      const at::Generator generator = at::globalContext().defaultGenerator(device);
      generators_.emplace_back(generator, state_of(generator));
    };
    add(c10::kCPU);
    if (!what.device.is_cpu()) add(what.device);
  }
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& buffer : what.buffers) {
    buffers_.emplace_back(buffer, buffer.detach().clone());
  }
}

// Covers exactly what this state covers, so that putting both back leaves no part behind.
ForwardState ForwardState::now() const {
  ForwardState result;
  for (const Autocast& autocast : autocast_) {
    result.autocast_.push_back(autocast_of(autocast.device_type));
  }
  for (const auto& [generator, state] : generators_) {
    result.generators_.emplace_back(generator, state_of(generator));
  }
  const c10::NoGradGuard no_grad;
  for (const auto& [buffer, elements] : buffers_) {
    result.buffers_.emplace_back(buffer, buffer.detach().clone());
  }
  return result;
}

std::vector<at::Tensor> ForwardState::keep_changed_buffers() {
  // A buffer with NaN counts as changed, which is safe. On a GPU the comparison waits for the
  // device, but only the first forward of a stage makes it.
  std::erase_if(buffers_, [](const auto& saved) { return saved.first.equal(saved.second); });
  std::vector<at::Tensor> changed;
  for (const auto& [buffer, elements] : buffers_) changed.push_back(buffer);
  return changed;
}

void ForwardState::put_back() const {
  for (const Autocast& autocast : autocast_) {
    at::autocast::set_autocast_enabled(autocast.device_type, autocast.is_enabled);
    at::autocast::set_autocast_dtype(autocast.device_type, autocast.dtype);
  }
  for (const auto& [generator, state] : generators_) {
    at::Generator same = generator;
    const std::lock_guard<std::mutex> lock(same.mutex());
    same.set_state(state);
  }
  const c10::NoGradGuard no_grad;
  // The version counter is bypassed, because graphs of other microbatches may hold the buffer.
  for (const auto& [buffer, elements] : buffers_) buffer.variable_data().copy_(elements);
}

ForwardStateScope::ForwardStateScope(const ForwardState& state) : outside_(state.now()) {
  at::autocast::increment_nesting();  // casts are released at the end
  state.put_back();
}

ForwardStateScope::~ForwardStateScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  try {
    // A destructor must not throw: the forward may have thrown already.
    outside_.put_back();
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        std::string("the state around a forward could not be put back: ") + error.what());
  }
}

}  // namespace stagecraft
