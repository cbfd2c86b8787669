#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/util/intrusive_ptr.h>

/// Random numbers in a capture, for the versions of torch that the library supports. A kernel that
/// is captured reads seed and offset from device memory. torch has one place for each generator;
/// here the place is chosen for every draw.
namespace stagecraft::detail {

/// Whether a generator has a state for each capture (newer versions of torch), or a single one.
template <typename State>
concept HasCaptureStates = requires(State& state) {
  state.capture_states_;
};

/// The position that the next draw of a captured kernel reads: seed and offset in device memory,
/// each one element of int64, and the number that is added to the offset.
struct DrawPosition {
  at::Tensor seed;
  at::Tensor offset;
  uint64_t draws = 0;
};

template <typename State, typename CaptureId>
void set_position(State& state, CaptureId capture, const DrawPosition& position) {
  if constexpr (HasCaptureStates<State>) {
    using Pointer = typename decltype(state.capture_states_)::mapped_type;
    auto& of_capture = state.capture_states_[capture];
    if (!of_capture) of_capture = c10::make_intrusive<typename Pointer::element_type>();
    of_capture->rng_state_seed_extragraph_ = position.seed;
    of_capture->rng_state_offset_extragraph_ = position.offset;
    of_capture->offset_intragraph_ = position.draws;
  } else {
    state.capturing_ = true;
    state.seed_extragraph_ = position.seed;
    state.offset_extragraph_ = position.offset;
    state.offset_intragraph_ = static_cast<decltype(state.offset_intragraph_)>(position.draws);
  }
}

/// The number that was added to the offset so far.
template <typename State, typename CaptureId>
uint64_t get_draws(State& state, CaptureId capture) {
  if constexpr (HasCaptureStates<State>) {
    const auto found = state.capture_states_.find(capture);
    return found == state.capture_states_.end() ? 0 : found->second->offset_intragraph_;
  } else {
    return state.offset_intragraph_;
  }
}

template <typename State, typename CaptureId>
void end_positions(State& state, CaptureId capture) {
  if constexpr (HasCaptureStates<State>) {
    state.capture_states_.erase(capture);
  } else {
    state.capturing_ = false;
    state.seed_extragraph_ = {};
    state.offset_extragraph_ = {};
  }
}

}  // namespace stagecraft::detail
