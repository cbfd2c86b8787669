#pragma once

#include <cstdint>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace stagecraft {

/// Gives the calling thread random numbers of its own. While it lives, every aten operator that is
/// called on this thread without its optional generator (bernoulli_, normal_, rand, randperm,
/// dropout, ...) draws from the scope. The default generator of the process is neither read,
/// changed nor locked. An explicit generator is used.
///
///   RandomScope random(mix_seed(seed, step, microbatch, stage));
///   at::Tensor y = at::dropout(x, 0.1, true);  // depends on the four numbers alone
///
/// The draws on the CPU are those of a `torch.Generator` with `manual_seed(seed)`; torch uses the
/// low 32 bits of the seed. Draws on other devices do not depend on the index of the device. Scopes
/// nest: the innermost scope draws, and when it ends, the scope around it continues.
///
/// Only the thread that made it is affected. It must end on that thread. Operators that start
/// threads of their own, such as intra-op threads and autograd's device threads, are covered as far
/// as they draw on the calling thread. All of aten's operators do so in forward, but a backward
/// that draws on a CUDA device does not.
///
/// CUDA operators that take no generator (native_dropout, fused attention with dropout) are run
/// with the state of the device's default generator exchanged for the scope's, and put back. Scopes
/// take turns. A thread without a scope that draws from the default generator at that moment takes
/// numbers of the scope. cuDNN's recurrent layers with dropout, which keep a state of their own,
/// are not covered. Nor are captures of CUDA graphs, except those of a pipeline
/// (PipelineOptions::graphs).
///
/// Other operators cost nothing. An operator that draws costs about 0.4 us. The first one in a
/// scope also seeds the generator, which costs about 1 us more. The program starts about 10 ms
/// later.
class RandomScope {
 public:
  /// Error if its dispatch key (DeferredInit) is used by a different library or a second copy of
  /// this one.
  explicit RandomScope(uint64_t seed);
  /// The same as RandomScope(mix_seed(base, 0, 0, place)). A step that is replayed as a graph
  /// (PipelineOptions::graphs) derives the seed again if `base` is StageContext::draw.
  RandomScope(uint64_t base, uint64_t place);
  ~RandomScope();

  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard on_;
};

/// The seed for one stage and microbatch of one step. Every bit of it depends on every bit of the
/// four numbers. Two calls that differ in one number never return the same seed. The result for
/// given numbers never changes: saved runs rely on it.
uint64_t mix_seed(uint64_t seed, uint64_t step, uint64_t microbatch, uint64_t place);

/// The `place` for numbers that all stages have in common.
inline constexpr uint64_t kWholeModel = ~uint64_t{0};

}  // namespace stagecraft
