#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft::bench {

/// What one contender is: something that runs its work `iterations` times and says how many seconds
/// that took.
using Timed = std::function<double(int iterations)>;

/// Times a function that does the work once.
Timed timed(std::function<void()> work);

/// What our time is held against.
struct Reference {
  std::string name;
  Timed run;
  /// The largest ratio of our time to this one that is good enough. A row without a goal must say
  /// that it is informative.
  std::optional<double> goal = std::nullopt;
  bool informative = false;
};

/// The median of the rounds, seconds for one iteration, and half the distance between the quartiles
/// as a part of it.
struct Sample {
  double seconds = 0;
  double spread = 0;
};

struct Row {
  std::string what;
  std::string reference;
  Sample ours;
  Sample theirs;
  std::optional<double> goal = std::nullopt;

  double ratio() const { return ours.seconds / theirs.seconds; }
};

/// Something measured that has no reference.
struct Quantity {
  std::string what;
  double value = 0;
  std::string unit;
  /// The largest value that is good enough.
  std::optional<double> limit = std::nullopt;
};

/// One benchmark program:
///
///   int main(int argc, char** argv) {
///     return bench::run_suite("microbatch", argc, argv, [](bench::Suite& suite) {
///       suite.compare("split", timed(ours), {{"ATen", timed(bare), 1.15}});
///     });
///   }
///
/// The command line knows --rounds N, --quick (one short round: does it run?) and --out DIR.
class Suite {
 public:
  /// Exits with 2 and a message on a bad command line.
  Suite(std::string name, int argc, char** argv);

  /// Measures our side and all references in turns, round after round, the order reversed each
  /// time, and adds one row for each reference. Each turn takes about 50 ms.
  void compare(const std::string& what, const Timed& ours,
               const std::vector<Reference>& references);

  /// Adds a line below the table.
  void report(Quantity quantity) { quantities_.push_back(std::move(quantity)); }

  /// Prints the table and writes NAME.json. A missed goal is said in both and is no failure.
  void finish() const;

  /// Whether the run only shows that the program works: sizes may be small.
  bool quick() const { return quick_; }

 private:
  std::string name_;
  std::string out_;
  int rounds_ = 21;
  bool quick_ = false;
  std::vector<Row> rows_;
  std::vector<Quantity> quantities_;
};

/// Runs `measure` and finishes the suite; the exit code of the program. What `measure` throws
/// becomes a line on standard error and 1.
int run_suite(const std::string& name, int argc, char** argv,
              const std::function<void(Suite&)>& measure);

/// Median and spread of some times. Requires at least one.
Sample summarise(std::vector<double> times);

}  // namespace stagecraft::bench
