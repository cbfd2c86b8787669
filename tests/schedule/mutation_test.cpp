#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/add_waits.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/passes/reduce_grads.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/text.h"
#include "stagecraft/schedule/verify.h"
#include "tests/schedule/brute_force.h"
#include "tests/schedule/mutations.h"
#include "tests/schedule/random.h"

// Good schedules are changed at random; `verify` has to say of each what brute force says.

namespace stagecraft {
namespace {

using brute_force::Answer;

Fields fields_of(const Schedule& schedule) {
  Fields fields;
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    std::vector<Field>& list = fields.emplace_back();
    for (const Slot& slot : schedule.slots(Rank(r))) {
      Field& field = list.emplace_back();
      for (const Action action : slot.parts()) {
        field.push_back(
            {.stage = action.stage().value(),
             .word = std::string(to_string(action.type())),
             .microbatch = has_microbatch(action.type()) ? action.microbatch().value() : -1});
      }
    }
  }
  return fields;
}

// What the library reads from the same texts that brute force reads.
std::vector<ActionList> actions_of(const brute_force::Lists& texts) {
  std::vector<ActionList> lists;
  for (const std::vector<std::string>& row : texts) {
    ActionList& list = lists.emplace_back();
    for (const std::string& text : row) {
      if (text.empty()) {
        list.emplace_back();
      } else {
        std::ranges::copy(parse_actions(text), std::back_inserter(list));
      }
    }
  }
  return lists;
}

struct Case {
  Schedule schedule;
  StageGraph graph;
  brute_force::Problem problem;
  std::string title;
};

std::optional<Schedule> try_build(std::string_view name, const ScheduleShape& shape) {
  try {
    return build_schedule(name, shape);
  } catch (const ArgumentError&) {
    return std::nullopt;
  }
}

StageGraph random_graph(int32_t stages, Random& random) {
  const StageGraph chain = StageGraph::chain(stages);
  std::vector<StageEdge> edges;
  if (stages > 2 && random.one_in(3)) {
    for (int32_t i = random.between(1, 3); i > 0; --i) {
      const int32_t from = random.between(0, stages - 2);
      edges.push_back({.from = StageId(from), .to = StageId(random.between(from + 1, stages - 1))});
    }
  }
  return chain.with_edges(edges);
}

Case random_case(Level level, Random& random) {
  for (;;) {
    const ScheduleKind& kind = schedule_kinds()[random.below(schedule_kinds().size())];
    const ScheduleShape shape = {.ranks = random.between(1, 4),
                                 .microbatches = random.between(1, 6),
                                 .stages_per_rank = random.between(1, 3)};
    std::optional<Schedule> built = try_build(kind.name, shape);
    if (!built || (!kind.has_backward && !random.one_in(3))) {
      continue;
    }
    const StageGraph graph = random_graph(built->num_stages(), random);
    LowerOptions options;
    options.shard = random.one_in(2);
    options.max_active_stages = random.between(1, 3);
    options.reduce_grads = random.one_in(2);
    if (random.one_in(3)) {
      options.prefetch = random.between(0, 3);
    } else if (random.one_in(2)) {
      options.target = LowerTarget::kTorch215;
    }
    if (options.target == LowerTarget::kTorch215 && random.one_in(2)) {
      options.max_sends = random.between(5, 6);
    }
    if (random.one_in(2)) {
      options.reduction_wait = random.one_in(2) ? ReductionWait::kAtOnce : ReductionWait::kDeferred;
    }
    Schedule schedule = *built;
    if (level == Level::kLowered) {
      schedule = lower(*built, graph, options);
    } else {
      schedule = options.shard ? shard_stages(schedule, options.max_active_stages) : schedule;
      schedule = options.reduce_grads ? reduce_grads(schedule) : schedule;
      schedule = options.reduction_wait ? add_reduction_waits(schedule, *options.reduction_wait)
                                        : schedule;
    }
    brute_force::Problem problem;
    for (const Rank rank : schedule.placement().ranks()) problem.rank_of.push_back(rank.value());
    problem.microbatches = shape.microbatches;
    for (const StageEdge& edge : graph.edges()) {
      problem.edges.emplace_back(edge.from.value(), edge.to.value());
    }
    problem.lowered = level == Level::kLowered;
    problem.backward = kind.has_backward;
    std::ostringstream title;
    title << kind.name << ", " << shape.ranks << " ranks, " << shape.microbatches
          << " microbatches, edges " << to_string(graph.edges());
    return {std::move(schedule), graph, std::move(problem), title.str()};
  }
}

std::string describe(const Case& c, const brute_force::Lists& texts, Answer answer,
                     const Verdict& verdict) {
  std::ostringstream out;
  out << c.title << ", placement " << to_string(c.schedule.placement()) << ", brute force says "
      << static_cast<int>(answer) << ", verify says:\n";
  for (const Finding& finding : verdict.findings) {
    out << "  " << to_string(finding) << '\n';
  }
  for (const std::vector<std::string>& row : texts) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out << (i == 0 ? "" : ",") << row[i];
    }
    out << '\n';
  }
  return out.str();
}

bool has_kind(const Verdict& verdict, FindingKind kind) {
  return std::ranges::any_of(verdict.findings,
                             [&](const Finding& finding) { return finding.kind == kind; });
}

// What is wrong with the verdict itself, or nothing: it has to say the same as brute force, every
// finding says where or what, and one of them is about what brute force ran into.
std::string complaint(const Verdict& verdict, Answer answer,
                      const std::vector<std::string>& stuck) {
  if (verdict.ok() != (answer == Answer::kExecutable)) {
    return "another verdict than brute force";
  }
  if (verdict.findings.empty() != verdict.ok() || verdict.num_findings < verdict.findings.size()) {
    return "findings that do not fit their number";
  }
  for (const Finding& finding : verdict.findings) {
    if ((!finding.rank && finding.action.empty()) || finding.message.empty()) {
      return "a finding that names nothing";
    }
    if (finding.kind == FindingKind::kDeadlock && finding.cycle.empty()) {
      return "a deadlock without its cycle";
    }
  }
  if (answer == Answer::kStuck) {
    for (const Finding& finding : verdict.findings) {
      if (finding.kind != FindingKind::kOrder && finding.kind != FindingKind::kDeadlock) {
        return "a finding about something else than the order";
      }
      const auto stands = [&](const std::string& text) {
        return std::ranges::find(stuck, text) != stuck.end();
      };
      if (!stands(finding.action)) {
        return "a rank that does not stand still there";
      }
      if (finding.kind == FindingKind::kDeadlock &&
          std::ranges::count_if(finding.cycle, stands) < 2) {
        return "a cycle of less than two ranks that stand still";
      }
    }
  }
  if (answer == Answer::kBadSharding && !has_kind(verdict, FindingKind::kSharding) &&
      !has_kind(verdict, FindingKind::kReduceGrad) &&
      !has_kind(verdict, FindingKind::kUnexpected)) {
    return "nothing about sharding or REDUCE_GRAD";
  }
  return "";
}

struct Tally {
  std::map<Answer, int> answers;
  int deadlocks = 0;
};

// Runs the seeds [0, seeds) and stops at the fifth that fails.
Tally run(Level level, int seeds) {
  Tally tally;
  int failed = 0;
  for (int seed = 0; seed < seeds && failed < 5; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    const Case c = random_case(level, random);
    const Fields original = fields_of(c.schedule);
    EXPECT_EQ(brute_force::answer(to_texts(original), c.problem), Answer::kExecutable)
        << "seed " << seed << " before any change: " << c.title;

    Fields fields = original;
    for (int32_t i = random.between(1, 3); i > 0 || fields == original; --i) {
      mutate(fields, c.problem, random);
    }
    const brute_force::Lists texts = to_texts(fields);
    std::vector<std::string> stuck;
    const Answer answer = brute_force::answer(texts, c.problem, &stuck);
    const Verdict verdict =
        verify(Schedule(level, c.schedule.placement(), actions_of(texts)), c.graph,
               {.mode = c.problem.backward ? VerifyMode::kTraining : VerifyMode::kForwardOnly,
                .microbatches = c.problem.microbatches});
    if (const std::string wrong = complaint(verdict, answer, stuck); !wrong.empty()) {
      ADD_FAILURE() << "seed " << seed << ": " << wrong << "; "
                    << describe(c, texts, answer, verdict);
      ++failed;
    }
    ++tally.answers[answer];
    tally.deadlocks += has_kind(verdict, FindingKind::kDeadlock) ? 1 : 0;
  }
  return tally;
}

void expect_balanced(Tally& tally, int seeds) {
  const int good = tally.answers[Answer::kExecutable];
  EXPECT_GE(good * 5, seeds);
  EXPECT_GE((seeds - good) * 5, seeds);
  for (const Answer answer : {Answer::kMisplaced, Answer::kIncomplete, Answer::kBadSharding}) {
    EXPECT_GE(tally.answers[answer] * 100, seeds) << static_cast<int>(answer);
  }
  EXPECT_GE(tally.answers[Answer::kStuck] * 10, seeds);
  EXPECT_GE(tally.deadlocks * 50, seeds);
  for (const auto& [answer, count] : tally.answers) {
    testing::Test::RecordProperty("answer_" + std::to_string(static_cast<int>(answer)), count);
  }
  testing::Test::RecordProperty("deadlocks", tally.deadlocks);
}

// `make test-slow` asks for more.
int num_seeds(int usual) {
  const char* const times = std::getenv("SC_MUTATION_TIMES");
  return times == nullptr ? usual : usual * std::max(std::atoi(times), 1);
}

TEST(Mutation, LoweredVerdictsAreThoseOfBruteForce) {
  const int seeds = num_seeds(25'000);
  Tally tally = run(Level::kLowered, seeds);
  EXPECT_GE(tally.answers[Answer::kBadText] * 100, seeds);
  expect_balanced(tally, seeds);
}

TEST(Mutation, ComputeVerdictsAreThoseOfBruteForce) {
  const int seeds = num_seeds(6'000);
  Tally tally = run(Level::kCompute, seeds);
  expect_balanced(tally, seeds);
}

}  // namespace
}  // namespace stagecraft
