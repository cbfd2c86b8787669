#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft::detail {

/// The seed of a scope, and its origin if it was derived with mix_seed(base, 0, 0, place).
struct ScopeSeed {
  struct Derivation {
    uint64_t base = 0;
    uint64_t place = 0;
  };

  uint64_t seed = 0;
  std::optional<Derivation> derivation = std::nullopt;
};

/// Gives generators to the scopes of a thread while its operators are captured for a replay. A
/// sequence is the numbers that one scope draws. A replay gives every sequence a new seed.
class CapturedDraws {
 public:
  virtual ~CapturedDraws() = default;

  /// The device whose draws are captured. Draws on other devices are not affected.
  virtual c10::Device device() const = 0;
  /// Called when a scope draws for the first time: a new sequence. Error for a seed that a replay
  /// cannot derive again.
  virtual std::size_t open(const ScopeSeed& seed) = 0;
  /// The generator of a sequence, at the position after the last draw from it. Valid for one draw.
  virtual at::Generator continue_at(std::size_t sequence) = 0;
  /// The seeds of `count` sequences from `first` on, int64 on the device. A replay writes them.
  virtual at::Tensor seeds_of(std::size_t first, std::size_t count) = 0;
};

/// The CapturedDraws of the scopes of the calling thread; null outside a CapturedDrawsGuard.
CapturedDraws* find_captured_draws();

/// Makes the scopes of the calling thread draw from `draws` while the guard lives.
class CapturedDrawsGuard {
 public:
  explicit CapturedDrawsGuard(CapturedDraws& draws);
  ~CapturedDrawsGuard();
  CapturedDrawsGuard(const CapturedDrawsGuard&) = delete;
  CapturedDrawsGuard& operator=(const CapturedDrawsGuard&) = delete;
};

/// The generators of the calling thread's scopes. They outlive the scopes, because creating one
/// costs more than seeding it again.
void enter_random_scope(const ScopeSeed& seed);
void leave_random_scope();

/// The innermost scope's generator for `device`, seeded on its first use. Nothing without a scope,
/// and for devices without random numbers (meta). A device without an index is the current device.
std::optional<at::Generator> find_scope_generator(c10::Device device);

}  // namespace stagecraft::detail
