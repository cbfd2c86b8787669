#pragma once

#include <cstdint>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace stagecraft {

/// Gives the calling thread random numbers of its own. While it lives, every aten operator with an
/// optional generator that was given none (bernoulli_, normal_, rand, randperm, dropout, ...) draws
/// on this thread from the scope instead of the default generator of the process, which is neither
/// read, changed nor locked. A generator that was given is used.
///
///   RandomScope random(mix_seed(seed, step, microbatch, stage));
///   at::Tensor y = at::dropout(x, 0.1, true);  // depends on the four numbers alone
///
/// The draws on the CPU are those of a `torch.Generator` with `manual_seed(seed)`, of which torch
/// uses the low 32 bits; on other devices likewise, whatever the index of the device. Scopes
/// nest: the innermost is drawn from, and when it ends the one around it goes on where it was.
///
/// Only the thread that made it is affected, and it must end there. Operators that start threads of
/// their own (intra-op, autograd's device threads) are covered as far as they draw on the calling
/// thread, which all of aten's do in forward; a backward that draws on a CUDA device does not.
///
/// CUDA operators that take no generator (native_dropout, fused attention with dropout) are run
/// with the state of the device's default generator exchanged for the scope's, and put back. Scopes
/// take turns at it; a thread without a scope that draws from that default generator at that very
/// moment takes numbers of the scope. Neither cuDNN's recurrent layers with dropout, which keep a
/// state of their own, nor the capture of CUDA graphs are covered.
///
/// It costs nothing for other operators, about 0.4 us for one that draws and one more for the first
/// of them, which seeds; the program starts about 10 ms later.
class RandomScope {
 public:
  /// Throws Error where the dispatch key that this uses (DeferredInit) is taken by another library
  /// or another copy of this one.
  explicit RandomScope(uint64_t seed);
  ~RandomScope();

  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard on_;
};

/// A seed for one place of one step. Every bit of it depends on every bit of the four numbers, and
/// two calls that differ in one of them never give the same. The result for given numbers is fixed
/// for ever: saved runs rely on it.
uint64_t mix_seed(uint64_t seed, uint64_t step, uint64_t microbatch, uint64_t place);

/// The place of no stage: what all of them have in common.
inline constexpr uint64_t kWholeModel = ~uint64_t{0};

}  // namespace stagecraft
