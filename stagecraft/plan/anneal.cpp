#include "stagecraft/plan/anneal.h"

#include <algorithm>

#include "stagecraft/base/assert.h"

namespace stagecraft::plan {
namespace {

constexpr double kReach = 60;
constexpr double kMeanShare = 0.05;
constexpr double kHot = 0.2;     // temperature at the beginning, in units of the longest forward
constexpr double kCold = 0.002;  // temperature at the end

// Whether `first` must come before `second` on a rank that has both.
bool must_precede(const Op& first, const Op& second) {
  if (first.kind == second.kind && first.stage == second.stage) return true;
  if (first.m != second.m) return false;
  if (first.stage == second.stage) return first.kind < second.kind;
  // In a chain, a microbatch passes F in ascending order of stages, then I in descending order.
  if (first.kind == kF) {
    return second.kind == kF ? first.stage < second.stage : second.kind == kI;
  }
  return first.kind == kI && second.kind == kI && first.stage > second.stage;
}

}  // namespace

Annealer::Annealer(const Instance& in) : in_(in), evaluator_(in), clock_(in) {}

bool Annealer::propose(Random& random, Move& move) const {
  move.rank = static_cast<int32_t>(random.below(static_cast<uint64_t>(in_.ranks)));
  const std::size_t size = words_[move.rank].size();
  if (size < 2) return false;
  move.from = random.below(size);
  const double u = random.uniform();
  const auto distance = static_cast<std::size_t>(1 + u * u * u * kReach);
  const bool is_later = (random.next() & 1U) != 0;
  if (is_later ? move.from + distance >= size : move.from < distance) return false;
  move.to = is_later ? move.from + distance : move.from - distance;
  return is_legal(move);
}

bool Annealer::is_legal(const Move& move) const {
  const Word& word = words_[move.rank];
  const std::vector<double>& before = before_[move.rank];
  const Op& op = word[move.from];
  const double cap = with_slack(in_.cap[move.rank]);
  const double change = in_.delta[op.kind][op.stage] * in_.size[op.m];
  const double own = in_.need[op.kind][op.stage] * in_.size[op.m];
  const bool is_later = move.to > move.from;
  const std::size_t low = is_later ? move.from + 1 : move.to;
  const std::size_t high = is_later ? move.to : move.from - 1;
  for (std::size_t i = low; i <= high; ++i) {
    const Op& passed = word[i];
    if (in_.has_chain ? (is_later ? must_precede(op, passed) : must_precede(passed, op))
                      : passed.stage == op.stage) {
      return false;
    }
    const double held = before[i] + (is_later ? -change : change);
    if (held + in_.need[passed.kind][passed.stage] * in_.size[passed.m] > cap) return false;
  }
  const Op& next = word[move.to];
  const double held =
      is_later ? before[move.to] - change + in_.delta[next.kind][next.stage] * in_.size[next.m]
               : before[move.to];
  return held + own <= cap;
}

void Annealer::apply(const Move& move) {
  Word& word = words_[move.rank];
  const auto at = [&](std::size_t i) { return word.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::size_t low = std::min(move.from, move.to);
  const std::size_t high = std::max(move.from, move.to);
  if (move.to > move.from) {
    std::rotate(at(low), at(low + 1), at(high + 1));
  } else {
    std::rotate(at(low), at(high), at(high + 1));
  }
  std::vector<double>& before = before_[move.rank];
  for (std::size_t i = low; i < high; ++i) {
    const Op& op = word[i];
    before[i + 1] = before[i] + in_.delta[op.kind][op.stage] * in_.size[op.m];
  }
}

void Annealer::load(const Words& words) {
  words_ = words;
  before_.resize(words_.size());
  for (std::size_t r = 0; r < words_.size(); ++r) {
    before_[r].clear();
    double held = 0;
    for (const Op& op : words_[r]) {
      before_[r].push_back(held);
      held += in_.delta[op.kind][op.stage] * in_.size[op.m];
    }
  }
}

void Annealer::shake(Words& words, int moves, Random& random) {
  load(words);
  for (int i = 0; i < moves; ++i) {
    Move move;
    for (int tries = 0; tries < 16; ++tries) {
      if (!propose(random, move)) continue;
      apply(move);
      break;
    }
  }
  words = words_;
}

double Annealer::run(Words& words, double value, double enough, Random& random,
                     const std::function<double()>& progress) {
  SC_ASSERT(QuickClock::takes(in_));
  load(words);
  const double unit = *std::max_element(in_.time[kF].begin(), in_.time[kF].end());
  const double eps = 1e-11 * in_.most_work();
  if (!clock_.start(words_)) return value;
  clock_.accept();
  double now = clock_.value() + kMeanShare * clock_.mean();
  double temperature = 0;
  for (int64_t i = 0; value > enough; ++i) {
    if (i % kMovesPerProgress == 0) {
      const double share = progress();
      if (share >= 1) break;
      temperature = unit * kHot * Random::exp2_of(share * Random::log2_of(kCold / kHot));
    }
    Move move;
    bool is_found = false;
    for (int tries = 0; tries < 64 && !is_found; ++tries) is_found = propose(random, move);
    if (!is_found) continue;
    apply(move);
    const double limit = now + temperature * random.exponential();
    const bool runs = clock_.change(words_, move.rank, std::min(move.from, move.to));
    const double next = clock_.value() + kMeanShare * clock_.mean();
    if (runs && next <= limit) {
      now = next;
      clock_.accept();
      // Memory was checked at each move. It is checked again, because the evaluator's sums may
      // differ in their last bits.
      if (clock_.value() < value - eps && evaluator_.run(words_).fits) {
        value = clock_.value();
        words = words_;
      }
    } else {
      apply({move.rank, move.to, move.from});
    }
  }
  return value;
}

}  // namespace stagecraft::plan
