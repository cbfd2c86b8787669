#include <algorithm>

#include "stagecraft/plan/seeds.h"

namespace stagecraft::plan {

std::vector<DueDates> fixed_starts(int32_t microbatches) {
  const double m = microbatches;
  return {
      {false, 2.7, 2.1, 3.8, .5, 0, 0},
      {true, 2, 2, 0, 0, 0, 0},
      {false, 1, 1, 0, 1e3, .8, 0},
      {false, .3, .3, 0, .4 * m, .85, 0},
      {false, 2.7, 2.6, -2.9, .45 * m, .9, .2},
      {true, 3, 2.4, .4, .3, 0, .9},
      {false, .6, 1.7, -1.6, .6 * m, .7, 0},
      {false, 5.7, .61, -.7, .65 * m, .98, 0},
      {true, 2.6, 2.3, -.1, .5, .1, 1.2},
      {true, 3.85, 3.25, -.3, 1, .15, 1},
      {false, 4.5, 3.85, -1.5, .35 * m, .96, .66},
      {false, .15, .5, -.7, .95 * m, .87, 0},
      {true, 5, .8, 0, 1, 0, 0},
      {false, 1, 1, 0, 0, 0, 0},
      {false, 4.9, 2.3, -1.8, .5 * m, .7, .2, 1, true},
      {true, 3.2, 1.55, -.55, .1, .15, .7},
  };
}

DueDates random_dates(Random& random, int32_t microbatches) {
  const auto scale = [&] { return Random::exp2_of(random.uniform(-3.3, 3.9)); };
  DueDates d;
  d.backwards = random.chance(.35);
  d.first_pass = scale();
  d.second_pass = scale();
  d.turn = random.uniform(-8, 15);
  d.weight_lag = random.chance(.5) ? random.uniform(0, 3) : random.uniform(0, microbatches);
  d.tolerance = random.chance(.3) ? 0 : random.uniform();
  d.eager = random.chance(.5) ? 0 : random.uniform(0, 2);
  d.memory_share = random.chance(.5) ? 1 : random.uniform(.5, 1);
  d.balance = random.chance(.5);
  return d;
}

DueDates mutated(const DueDates& dates, Random& random) {
  DueDates d = dates;
  const double w = random.chance(.5) ? .1 : .4;
  const auto factor = [&] { return Random::exp2_of(1.4427 * w * random.normal()); };
  if (random.chance(.6)) d.first_pass *= factor();
  if (random.chance(.6)) d.second_pass *= factor();
  if (random.chance(.6)) d.turn += 4 * w * random.normal();
  if (random.chance(.6)) {
    d.weight_lag = std::max(0.0, d.weight_lag * factor() + w * random.normal());
  }
  if (random.chance(.4)) {
    d.tolerance = std::clamp(d.tolerance + .5 * w * random.normal(), 0.0, 1.0);
  }
  if (random.chance(.4)) d.eager = std::max(0.0, d.eager + w * random.normal());
  if (random.chance(.3)) {
    d.memory_share = std::clamp(d.memory_share + .4 * w * random.normal(), .4, 1.0);
  }
  if (random.chance(.15)) d.balance = !d.balance;
  if (random.chance(.4)) {
    d.jitter = random.chance(.3) ? 0 : random.uniform(0, 4 * w);
    d.jitter_seed = random.next();
  }
  return d;
}

}  // namespace stagecraft::plan
