#include "benchmarks/harness.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "benchmarks/report.h"
#include "stagecraft/base/error.h"

namespace stagecraft::bench {
namespace {

[[noreturn]] void bad_usage(std::string_view message) {
  fmt::print(stderr, "{}\nusage: [--rounds N] [--quick] [--only TEXT] [--out DIR]\n", message);
  std::exit(2);
}

constexpr double kTurnSeconds = 0.05;
constexpr double kShortTurnSeconds = 0.01;
constexpr int kShortRounds = 10;  // rounds of short turns for one round of long turns
constexpr double kCompareSeconds = 60;
constexpr int kMinRounds = 5;
constexpr double kMicro = 1e6;

struct Turn {
  int iterations = 1;
  double seconds = 0;  // about the time of the turn
};

// Finds how many iterations take about `turn` seconds. The calls also warm up.
Turn calibrate(const Timed& run, double turn) {
  run(1);
  int iterations = 1;
  while (true) {
    const double seconds = run(iterations);
    if (seconds >= turn / 2) {
      const int enough = std::max(1, static_cast<int>(iterations * turn / seconds));
      return {enough, seconds / iterations * enough};
    }
    iterations = seconds < turn / 20 ? iterations * 10 : iterations * 2;
  }
}

// Seconds for one iteration, by contender and round. The first contender is also the last.
using Times = std::vector<std::vector<double>>;

struct TurnOptions {
  int rounds = 1;
  double turn_seconds = kTurnSeconds;
  bool quick = false;
};

Times take_turns(std::vector<const Timed*> contenders, const TurnOptions& options) {
  std::vector<Turn> turns(contenders.size());
  int rounds = 1;
  if (!options.quick) {
    double round_seconds = 0;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      turns[i] = calibrate(*contenders[i], options.turn_seconds);
      round_seconds += turns[i].seconds;
    }
    round_seconds += turns[0].seconds;
    rounds = std::min(options.rounds,
                      std::max(kMinRounds, static_cast<int>(kCompareSeconds / round_seconds)));
  }
  contenders.push_back(contenders.front());
  turns.push_back(turns.front());

  Times times(contenders.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
      const std::size_t who = round % 2 == 0 ? turn : contenders.size() - 1 - turn;
      const int iterations = turns[who].iterations;
      times[who].push_back((*contenders[who])(iterations) / iterations);
    }
  }
  return times;
}

// Interpolates between the two nearest values. REQUIRES sorted values.
double quantile(const std::vector<double>& values, double q) {
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  const double part = place - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

}  // namespace

Timed timed(std::function<void()> work) {
  return [work = std::move(work)](int iterations) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < iterations; ++i) work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
}

Sample summarise(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double median = quantile(times, 0.5);
  return {median, (quantile(times, 0.75) - quantile(times, 0.25)) / 2 / median};
}

double half_quartile_distance(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (quantile(values, 0.75) - quantile(values, 0.25)) / 2;
}

Suite::Suite(std::string name, int argc, char** argv)
    : name_(std::move(name)), out_(SC_BENCH_RESULTS) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--quick") {
      quick_ = true;
    } else if (flag == "--rounds" && has_value) {
      const std::string_view value = argv[++i];
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rounds_);
      if (error != std::errc() || end != value.data() + value.size() || rounds_ < 1) {
        bad_usage(fmt::format("--rounds: expected a positive number, got {}", value));
      }
    } else if (flag == "--only" && has_value) {
      only_ = argv[++i];
    } else if (flag == "--out" && has_value) {
      out_ = argv[++i];
    } else {
      bad_usage(fmt::format("unknown or incomplete flag {}", flag));
    }
  }
}

void Suite::compare(const std::string& what, const Timed& ours,
                    const std::vector<Reference>& references, int parts) {
  if (!wants(what)) return;
  std::vector<const Timed*> contenders = {&ours};
  for (const auto& reference : references) {
    if (!reference.goal && !reference.informative) {
      throw ArgumentError(fmt::format("{}: the row against {} has no goal and is not informative",
                                      what, reference.name));
    }
    contenders.push_back(&reference.run);
  }
  Times times = take_turns(contenders, {.rounds = rounds_, .quick = quick_});
  std::vector<double> again;
  for (std::size_t i = 0; i < times[0].size(); ++i) again.push_back(times.back()[i] / times[0][i]);
  const double noise = half_quartile_distance(again);

  times[0].insert(times[0].end(), times.back().begin(), times.back().end());
  std::vector<Sample> samples;
  for (const auto& each : times) {
    samples.push_back(summarise(each));
    samples.back().seconds /= parts;
  }
  for (std::size_t i = 0; i < references.size(); ++i) {
    rows_.push_back(
        {what, references[i].name, samples[0], samples[i + 1], references[i].goal, noise});
  }
}

void Suite::compare_overhead(const std::string& what, const Timed& ours, const Timed& bare,
                             int parts, std::optional<double> limit) {
  if (!wants(what)) return;
  const Times times = take_turns(
      {&ours, &bare},
      {.rounds = rounds_ * kShortRounds, .turn_seconds = kShortTurnSeconds, .quick = quick_});
  std::vector<double> over;
  std::vector<double> again;
  for (std::size_t i = 0; i < times[0].size(); ++i) {
    over.push_back((times[0][i] - times[1][i]) / parts * kMicro);
    again.push_back((times[2][i] - times[0][i]) / parts * kMicro);
  }
  report({what, summarise(over).seconds, "us", limit, half_quartile_distance(again)});
}

void Suite::finish() const {
  if (!rows_.empty()) fmt::print("{}", table(name_, rows_));
  fmt::print("{}", table(quantities_));
  if (quick_)
    fmt::print("a quick run: it shows that the program works, the numbers mean nothing\n");
  const std::string path = write_json(name_, rows_, quantities_, out_);
  fmt::print("written to {}\n", path);
}

int run_suite(const std::string& name, int argc, char** argv,
              const std::function<void(Suite&)>& measure) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // shows results of a run that does not end
  try {
    Suite suite(name, argc, argv);
    measure(suite);
    suite.finish();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace stagecraft::bench
