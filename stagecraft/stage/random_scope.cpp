#include "stagecraft/stage/random_scope.h"

#include "stagecraft/stage/random_generators.h"
#include "stagecraft/stage/random_operators.h"

namespace stagecraft {
namespace {

/// One step of splitmix64 from the state `x`: a bijection.
uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

RandomScope::RandomScope(uint64_t seed) : on_(detail::random_dispatch_key()) {
  detail::enter_random_scope({.seed = seed});
}

RandomScope::RandomScope(uint64_t base, uint64_t place) : on_(detail::random_dispatch_key()) {
  detail::enter_random_scope(
      {.seed = mix_seed(base, 0, 0, place), .derivation = {{.base = base, .place = place}}});
}

RandomScope::~RandomScope() {
  detail::leave_random_scope();
}

uint64_t mix_seed(uint64_t seed, uint64_t step, uint64_t microbatch, uint64_t place) {
  // A bijection before each xor: seeds that differ in one argument only are never equal. A plain
  // xor would not tell step 1, microbatch 2 from step 2, microbatch 1.
  return scramble(scramble(scramble(scramble(seed) ^ step) ^ microbatch) ^ place);
}

}  // namespace stagecraft
