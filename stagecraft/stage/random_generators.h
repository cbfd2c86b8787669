#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace stagecraft::detail {

/// The generators of the calling thread's scopes. They outlive the scopes, because creating one
/// costs more than seeding it again.
void enter_random_scope(uint64_t seed);
void leave_random_scope();

/// The innermost scope's generator for `device`, seeded on its first use. Nothing without a scope,
/// and for devices without random numbers (meta). A device without an index is the current device.
std::optional<at::Generator> find_scope_generator(c10::Device device);

}  // namespace stagecraft::detail
