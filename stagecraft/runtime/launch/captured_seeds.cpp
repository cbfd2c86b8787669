#include "stagecraft/runtime/launch/captured_seeds.h"

#include "stagecraft/base/check.h"
#include "stagecraft/stage/random_scope.h"

namespace stagecraft::detail {

CapturedSeeds::CapturedSeeds(GraphDevice& device, const Step& step, int32_t microbatches,
                             int32_t stages)
    : device_(device) {
  for (uint64_t m = 0; m < static_cast<uint64_t>(microbatches); ++m) {
    for (uint64_t s = 0; s < static_cast<uint64_t>(stages); ++s) {
      known_[mix_seed(step.seed, step.draw, m, s)] = {.microbatch = m, .place = s};
    }
    known_[mix_seed(step.seed, step.draw, m, kWholeModel)] = {.microbatch = m,
                                                              .place = kWholeModel};
  }
}

std::size_t CapturedSeeds::open(const ScopeSeed& seed) {
  const auto found = known_.find(seed.derivation ? seed.derivation->base : seed.seed);
  require<Error>(found != known_.end(),
                 "a RandomScope inside of a stage has a seed of its own, which a replay would draw "
                 "from again in every step; derive it from StageContext::draw with "
                 "RandomScope(base, place)");
  Origin origin = found->second;
  if (seed.derivation) origin.derived = seed.derivation->place;
  device_.open_sequence();
  origins_.push_back(origin);
  return origins_.size() - 1;
}

std::vector<uint64_t> CapturedSeeds::seeds(const Step& step) const {
  std::vector<uint64_t> seeds;
  seeds.reserve(origins_.size());
  for (const Origin& origin : origins_) {
    const uint64_t seed = mix_seed(step.seed, step.draw, origin.microbatch, origin.place);
    seeds.push_back(origin.derived ? mix_seed(seed, 0, 0, *origin.derived) : seed);
  }
  return seeds;
}

}  // namespace stagecraft::detail
