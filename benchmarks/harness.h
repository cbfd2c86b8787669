#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft::bench {

/// A contender: a function that runs its work `iterations` times and returns the seconds.
using Timed = std::function<double(int iterations)>;

/// Times a function that does the work once.
Timed timed(std::function<void()> work);

/// The reference that our time is compared with.
struct Reference {
  std::string name;
  Timed run;
  /// The largest acceptable ratio of our time to this one. A row without a goal must be marked as
  /// informative.
  std::optional<double> goal = std::nullopt;
  bool informative = false;
};

/// The median of the rounds, seconds for one iteration, and half the distance between the quartiles
/// as a share of it.
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
  /// A/A: half the distance between the quartiles of the ratio of our side to itself, round by
  /// round. If a ratio is closer to its goal than this, one run does not decide.
  double noise = 0;

  double ratio() const { return ours.seconds / theirs.seconds; }
};

/// A measured value that has no reference.
struct Quantity {
  std::string what;
  double value = 0;
  std::string unit;
  /// The largest acceptable value.
  std::optional<double> limit = std::nullopt;
  /// A/A: the distance between two measurements of the same value, in the same unit.
  std::optional<double> noise = std::nullopt;
};

/// One benchmark program:
///
///   int main(int argc, char** argv) {
///     return bench::run_suite("microbatch", argc, argv, [](bench::Suite& suite) {
///       suite.compare("split", timed(ours), {{"ATen", timed(bare), 1.15}});
///     });
///   }
///
/// The options of the command line are --rounds N, --quick (one short round, which shows that the
/// program runs), --only TEXT (rows whose name contains the text) and --out DIR.
class Suite {
 public:
  /// Exits with 2 and a message on a bad command line.
  Suite(std::string name, int argc, char** argv);

  /// Measures our side, all references and our side again in turns, round after round, the order
  /// reversed each time, and adds one row for each reference. Each turn takes about 50 ms. If an
  /// iteration consists of equal `parts`, the times are those of one part.
  void compare(const std::string& what, const Timed& ours, const std::vector<Reference>& references,
               int parts = 1);

  /// Adds a line below the table: how much longer our side takes than `bare`, which does the same
  /// work without this library, in microseconds for each part. The median over ten times as many
  /// rounds as above, with turns of about 10 ms.
  void compare_overhead(const std::string& what, const Timed& ours, const Timed& bare, int parts,
                        std::optional<double> limit = std::nullopt);

  /// Adds a line below the table.
  void report(Quantity quantity) { quantities_.push_back(std::move(quantity)); }

  /// The rows that compare() has added so far.
  const std::vector<Row>& rows() const { return rows_; }

  /// Prints the table and writes NAME.json. A missed goal is marked in both, but is not a failure.
  void finish() const;

  /// Whether the run only shows that the program works: sizes may be small.
  bool quick() const { return quick_; }
  /// The number of rounds; 1 for a quick run.
  int rounds() const { return quick_ ? 1 : rounds_; }
  /// Whether the command line selects a row with that name. compare() and compare_overhead() skip
  /// other rows.
  bool wants(std::string_view what) const { return what.find(only_) != std::string_view::npos; }
  /// The folder for NAME.json and other files of a run.
  const std::string& folder() const { return out_; }

 private:
  std::string name_;
  std::string out_;
  std::string only_;
  int rounds_ = 21;
  bool quick_ = false;
  std::vector<Row> rows_;
  std::vector<Quantity> quantities_;
};

/// Runs `measure` and finishes the suite. Returns the exit code of the program. If `measure`
/// throws, prints a line on standard error and returns 1.
int run_suite(const std::string& name, int argc, char** argv,
              const std::function<void(Suite&)>& measure);

/// Median and spread of some times. Requires at least one.
Sample summarise(std::vector<double> times);

/// Half the distance between the quartiles. Requires at least one.
double half_quartile_distance(std::vector<double> values);

}  // namespace stagecraft::bench
