#include "stagecraft/plan/search.h"

#include <algorithm>
#include <limits>

#include "stagecraft/base/assert.h"
#include "stagecraft/plan/exact.h"
#include "stagecraft/plan/known_seeds.h"
#include "stagecraft/plan/repeat.h"
#include "stagecraft/plan/zero_bubble.h"

namespace stagecraft::plan {
namespace {

constexpr std::size_t kPool = 12;        // best due dates that are kept, for mutations
constexpr double kNearForward = 1.04;    // seeds within this factor of the best are filled
constexpr double kNearBackward = 1.08;   // the same for seeds backwards in time and repeated words
constexpr int64_t kMostAnnealed = 2000;  // actions of a problem that is annealed
constexpr uint64_t kMostShaken = 8;      // actions that move at once
constexpr double kWorse = .02;           // of the gap, which a step of try_shaken may lose

}  // namespace

Search::Search(const ScheduleProblem& problem, const Instance& in, double bound,
               const SynthesisOptions& options)
    : problem_(problem),
      in_(in),
      options_(options),
      bound_(bound),
      enough_(bound * (1 + 1e-9)),
      start_(std::chrono::steady_clock::now()),
      evaluator_(in),
      seeder_(in),
      filler_(in),
      annealer_(in),
      random_(options.seed),
      starts_(fixed_starts(in.microbatches)),
      round_limit_(options.rounds.value_or(std::numeric_limits<int64_t>::max())) {
  SC_ASSERT(feasible(problem));
  best_ = sequential_words(in);
  value_ = evaluator_.run(best_).value;
  found_by_ = "one microbatch after the other";
}

double Search::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

bool Search::is_over() const {
  if (is_optimal() || rounds_ >= round_limit_) return true;
  if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) return true;
  return !options_.rounds && std::chrono::steady_clock::now() - start_ >= options_.time_limit;
}

bool Search::take(const Words& words, double value, std::string_view how) {
  if (!(value < value_)) return false;
  value_ = value;
  best_ = words;
  found_by_ = how;
  if (options_.progress) {
    const double gap = bound_ > 0 ? value / bound_ - 1 : 0;
    options_.progress({value, bound_, gap, rounds_, seconds(), found_by_});
  }
  return true;
}

double Search::consider(Words& words, double nearness, std::string_view how) {
  const Score score = evaluator_.run(words);
  if (!score.runs || !score.fits) return kNever;
  double value = score.value;
  take(words, value, how);
  if (value < value_ * nearness && !is_at_bound()) {
    const double filled = filler_.improve(words, value, 2, enough_);
    if (filled < value) {
      value = filled;
      take(words, value, std::string(how) + ", filled");
    }
  }
  return value;
}

void Search::try_known() {
  for (auto& [name, words] : known_seeds(problem_, in_)) {
    if (is_at_bound()) return;
    consider(words, kNearForward, name);
  }
}

void Search::try_zero_bubble() {
  if (in_.ranks != in_.stages || !in_.has_chain || is_over()) return;
  for (const ZeroBubbleChoice& choice : zero_bubble_choices()) {
    if (is_over()) return;
    if (build_zero_bubble(in_, choice, scratch_)) {
      consider(scratch_, kNearForward, "zero-bubble heuristic");
    }
  }
}

void Search::try_seed() {
  ++rounds_;
  DueDates dates;
  if (seeds_ < starts_.size()) {
    dates = starts_[seeds_];
  } else if (pool_.empty() || random_.chance(.35)) {
    dates = random_dates(random_, in_.microbatches);
  } else {
    const double u = random_.uniform();
    dates = mutated(
        pool_[static_cast<std::size_t>(u * u * static_cast<double>(pool_.size()))].second, random_);
  }
  ++seeds_;
  if (!seeder_.build(dates, scratch_)) return;
  const double value = consider(scratch_, dates.backwards ? kNearBackward : kNearForward,
                                dates.backwards ? "due dates, backwards" : "due dates");
  if (value == kNever) return;
  if (pool_.size() < kPool || value < pool_.back().first) {
    const auto place =
        std::upper_bound(pool_.begin(), pool_.end(), value,
                         [](double v, const auto& entry) { return v < entry.first; });
    pool_.insert(place, {value, dates});
    if (pool_.size() > kPool) pool_.pop_back();
  }
}

void Search::try_shaken() {
  ++rounds_;
  // Slightly worse words are accepted as a start for the next call. Sometimes the search returns to
  // the best words.
  if (value_ < shaken_value_ || random_.chance(.02)) {
    shaken_ = best_;
    shaken_value_ = value_;
  }
  scratch_ = shaken_;
  annealer_.shake(scratch_, 1 + static_cast<int>(random_.below(kMostShaken)), random_);
  const Score score = evaluator_.run(scratch_);
  if (!score.runs || !score.fits) return;
  take(scratch_, score.value, "shaken");
  const double value = filler_.improve(scratch_, score.value, 1, enough_);
  take(scratch_, value, "shaken, filled");
  if (value > shaken_value_ + kWorse * (value_ - bound_)) return;
  shaken_.swap(scratch_);
  shaken_value_ = value;
}

void Search::run_seeds(int64_t rounds) {
  try_known();
  for (int64_t i = 0; i < rounds && !is_over(); ++i) try_seed();
}

double Search::spent() const {
  if (options_.rounds) return static_cast<double>(rounds_) / static_cast<double>(round_limit_);
  const double limit = std::chrono::duration<double>(options_.time_limit).count();
  return limit > 0 ? seconds() / limit : 1;
}

void Search::anneal(double end) {
  if (is_over()) return;
  const double begin = spent();
  Words words = best_;
  const double value = annealer_.run(words, value_, enough_, random_, [&] {
    ++rounds_;
    return is_over() ? 1.0 : (spent() - begin) / (end - begin);
  });
  take(words, value, found_by_ + ", annealed");
  if (!is_at_bound()) consider(words, 2, found_by_);
}

void Search::try_repeated(const Instance& small, const Words& words) {
  constexpr int32_t kLongest = 4;
  for (int32_t k = 1; k <= kLongest && !is_over(); ++k) {
    const int32_t times = (in_.microbatches - small.microbatches) / k;
    for (const double middle : {.5, .4}) {
      if (repeat_stretch(small, words, k, times, middle, scratch_)) {
        consider(scratch_, kNearBackward, "repeated");
      }
    }
  }
}

void Search::try_repetition(double end) {
  const int32_t fewer = repeated_microbatches(in_.ranks, in_.microbatches);
  if (is_over() || fewer == 0 || !in_.is_uniform) return;
  ScheduleProblem problem = problem_;
  problem.microbatches = fewer;
  problem.sizes.clear();
  const Instance small(problem);
  SynthesisOptions options;
  options.seed = options_.seed;
  options.cancel = options_.cancel;
  const double share = std::max(0.0, end - spent());
  if (options_.rounds) {
    options.rounds = static_cast<int64_t>(share * static_cast<double>(round_limit_));
  } else {
    options.time_limit = std::chrono::duration_cast<std::chrono::nanoseconds>(
        share * std::chrono::duration<double>(options_.time_limit));
  }
  Search search(problem, small, tight_bound(small).value, options);
  search.run();
  rounds_ += search.rounds();
  try_repeated(small, search.words());
  Seeder seeder(small);
  Words words;
  for (std::size_t i = 0; i < starts_.size() && !is_over(); ++i) {
    if (seeder.build(starts_[i], words)) try_repeated(small, words);
  }
}

void Search::go_through_all(double end) {
  if (is_over() || !ExactSearch::takes(in_)) return;
  ExactSearch exact(in_);
  const bool is_complete = exact.run(value_, [&] {
    ++rounds_;
    return !is_over() && spent() < end;
  });
  if (exact.has_found()) {
    const Score score = evaluator_.run(exact.words());
    if (score.runs && score.fits) take(exact.words(), score.value, "all orders");
  }
  is_proved_ = is_complete;
}

void Search::run() {
  try_known();
  while (!is_over() && seeds_ < starts_.size()) try_seed();
  try_zero_bubble();
  go_through_all(.5);
  try_repetition(spent() + .25);
  const bool is_small = in_.num_actions() <= kMostAnnealed && QuickClock::takes(in_);
  if (is_small) {
    while (!is_over() && spent() < .2) try_seed();
    anneal(.95);
  }
  while (!is_over()) {
    if (random_.chance(.5)) {
      try_shaken();
    } else {
      try_seed();
    }
  }
}

}  // namespace stagecraft::plan
