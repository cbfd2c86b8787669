#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft {

/// Seeds for programs that draw random numbers from given seeds: for each place mix_seed(base, 0,
/// 0, place), the seed of RandomScope(base, place). An int64 tensor on the device, made without
/// waiting for the device. In a step that is replayed as a graph (PipelineOptions::graphs), every
/// replay derives the seeds again if `base` is StageContext::draw; a different base is an Error
/// there.
at::Tensor derived_seeds(uint64_t base, std::span<const uint64_t> places, c10::Device device);

}  // namespace stagecraft
