#include "stagecraft/report/save_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/report/resplit.h"
#include "stagecraft/runtime/gathered_rank.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/schedule/builders/builders.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr int64_t kWidth = 16;
const StepOptions kMeasured{.outputs = OutputMode::kNone, .measure_memory = true};

Microbatches batch_of(int32_t microbatches) {
  return random_batch(microbatches, 4 * microbatches, kWidth, 1);
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class SaveReport : public testing::Test {
 protected:
  SaveReport() : folder_(fs::path(testing::TempDir()) / ("reports_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~SaveReport() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

TEST_F(SaveReport, AllThreeFilesTellWhatThePipelineTells) {
  const models::WholeModel model = models::multi_mlp(kWidth, 4);
  Pipeline pipeline = make_pipeline(model.stages, {.schedule = "1F1B", .ranks = 2 * 2});
  pipeline.step(batch_of(6), kMeasured);
  const ReportOptions options{.title = "a run",
                              .command = "train --steps 1",
                              .losses = {{0, 1.5}},
                              .facts = {{"data", "none"}},
                              .stage_names = {"a", "b", "c", "d"}};
  for (const char* name : {"r.html", "r.json", "r.trace.json"}) {
    save_report(path(name), pipeline, options);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 3);

  const StepReport step = pipeline.report();
  const Json json = Json::parse(text_of(path("r.json")));
  EXPECT_EQ(json["step"]["makespan"], step.makespan);
  EXPECT_NEAR(json["step"]["bubble_share"].get<double>(), step.bubble_share, 1e-12);
  ASSERT_EQ(json["ranks"].size(), 4u);
  const MemoryEstimate estimate = pipeline.peak_memory_estimate(6);
  for (std::size_t r = 0; r < 4; ++r) {
    const Json& rank = json["ranks"][r];
    EXPECT_EQ(rank["compute"], step.ranks[r].compute);
    EXPECT_NEAR(rank["bubble"].get<double>(), step.ranks[r].bubble, 1e-6);
    EXPECT_NEAR(rank["exposed_transfer"].get<double>(), step.ranks[r].exposed_transfer, 1e-6);
    EXPECT_EQ(rank["bytes_sent"], step.ranks[r].bytes_sent);
    EXPECT_EQ(rank["memory"]["predicted_peak"], estimate.ranks[r].total());
    EXPECT_EQ(rank["memory"]["parameters"], estimate.ranks[r].parameters);
    // No gradients were there before the step, parameters were.
    EXPECT_EQ(rank["memory"]["recorded_peak"],
              estimate.ranks[r].parameters + *step.ranks[r].peak_memory);
    double most = 0;
    for (const Json& sample : rank["memory"]["recorded"]) {
      most = std::max(most, sample[1].get<double>());
    }
    EXPECT_LE(most, rank["memory"]["recorded_peak"]);
    EXPECT_GE(most, 0.7 * rank["memory"]["recorded_peak"].get<double>());
    most = 0;
    for (const Json& sample : rank["memory"]["predicted"]) {
      most = std::max(most, sample[1].get<double>());
    }
    EXPECT_EQ(most, rank["memory"]["predicted_peak"]);
  }
  int64_t sent = 0;
  for (const Json& stage : json["stages"]) {
    EXPECT_EQ(stage["F"]["count"], 6);
    EXPECT_EQ(stage["B"]["count"], 6);
    EXPECT_TRUE(stage["W"].is_null());
    EXPECT_EQ(stage["parameters"].get<int64_t>() * 4, stage["parameter_bytes"]);
    sent += stage["activations_sent"].get<int64_t>() + stage["gradients_sent"].get<int64_t>();
  }
  EXPECT_EQ(json["stages"][2]["name"], "c");
  int64_t all = 0;
  for (const RankReport& rank : step.ranks) all += rank.bytes_sent;
  EXPECT_EQ(sent, all);
  EXPECT_GT(sent, 0);

  EXPECT_THAT(text_of(path("r.html")), HasSubstr("train --steps 1"));
  const Json trace = Json::parse(text_of(path("r.trace.json")));
  EXPECT_EQ(trace["otherData"]["makespan"], step.makespan);
  std::size_t slices = 0;
  std::size_t samples = 0;
  for (const Json& event : trace["traceEvents"]) {
    slices += event["ph"] == "X" && event["cat"] == "computation" ? 1 : 0;
    samples += event["ph"] == "C" ? 1 : 0;
  }
  EXPECT_EQ(slices, 2u * 4 * 6);
  EXPECT_GT(samples, 2u * 4 * 6);
}

TEST_F(SaveReport, SaysWhatItCannotWrite) {
  const models::WholeModel model = models::multi_mlp(kWidth, 2);
  Pipeline pipeline = make_pipeline(model.stages);
  EXPECT_ERROR(save_report(path("r.html"), pipeline), ArgumentError, "before the first step");
  pipeline.step(batch_of(2));
  EXPECT_ERROR(save_report(path("r.pdf"), pipeline), ArgumentError, "ends with .html, .json or");
  EXPECT_ERROR(save_report(path("no/r.html"), pipeline), Error, "No such file or directory");
  EXPECT_ERROR(save_report(path("no/r.html"), pipeline), Error, path("no/r.html"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST(MakeRunReport, ComparesWithTheCostsOfTheStep) {
  const models::WholeModel model = models::multi_mlp(kWidth, 4);
  Pipeline pipeline = make_pipeline(model.stages, {.schedule = "Interleaved1F1B", .ranks = 2});
  pipeline.step(batch_of(4), kMeasured);
  const RunReport report = make_run_report(pipeline);
  double compute = 0;
  for (const ReportedRank& rank : report.ranks) compute += rank.compute;
  std::size_t own = 0;
  ASSERT_GE(report.comparison.schedules.size(), 5u);
  for (const ComparedSchedule& one : report.comparison.schedules) {
    double busy = 0;
    for (const RankStats& rank : one.result.ranks) busy += rank.busy;
    // The same model whatever the cut.
    EXPECT_NEAR(busy, compute, 1e-6 * compute) << one.name << one.stages_per_rank;
    EXPECT_GT(one.result.peak_memory, 0);
    own += one.name == "Interleaved1F1B" && one.stages_per_rank == 2 ? 1 : 0;
  }
  EXPECT_EQ(own, 1u);
  std::string assumptions;
  for (const std::string& one : report.assumptions) assumptions += one;
  EXPECT_THAT(assumptions, HasSubstr("half each"));
  EXPECT_THAT(assumptions, HasSubstr("This run has 4 stages"));
  EXPECT_TRUE(make_run_report(pipeline, {.compare = false}).comparison.schedules.empty());
}

TEST(MakeRunReport, DividedBackwardsAreNotHalved) {
  const models::WholeModel model = models::multi_mlp(kWidth, 4);
  Pipeline pipeline =
      make_pipeline(model.stages, {.schedule = "InterleavedZeroBubble", .ranks = 2});
  pipeline.step(batch_of(4));
  const RunReport report = make_run_report(pipeline);
  std::string assumptions;
  for (const std::string& one : report.assumptions) assumptions += one;
  EXPECT_THAT(assumptions, testing::Not(HasSubstr("half each")));
  EXPECT_THAT(assumptions, HasSubstr("sum of its parts"));
  EXPECT_FALSE(report.ranks[0].recorded_peak);
  EXPECT_EQ(report.comparison.schedules[0].result.peak_memory, 0);
  EXPECT_GT(report.stages[3].backward_weight.count, 0);
}

TEST(MakeRunReport, TakesAScheduleOfOnesOwnAndAnEval) {
  const models::WholeModel model = models::multi_mlp(kWidth, 3);
  const Schedule gpipe = build_schedule("GPipe", {.ranks = 3, .microbatches = 2});
  Pipeline pipeline = make_pipeline(model.stages, {.source = ScheduleSource::fixed(gpipe)});
  pipeline.step(batch_of(2), kMeasured);
  const RunReport report = make_run_report(pipeline);
  EXPECT_EQ(report.schedule_name, "own schedule");
  EXPECT_THAT(report_json(report), HasSubstr("\"is_this_run\": true"));

  pipeline.eval(batch_of(2));
  const RunReport eval = make_run_report(pipeline);
  EXPECT_TRUE(eval.comparison.schedules.empty());
  ASSERT_EQ(eval.assumptions.size(), 1u);
  EXPECT_THAT(eval.assumptions[0], HasSubstr("no backward"));
  EXPECT_FALSE(eval.ranks[0].predicted_peak);
  EXPECT_FALSE(draw_report(eval).empty());
}

TEST(MakeRunReport, TakesAStepThatFailed) {
  const TestModel model = chain_model(3);
  Pipeline pipeline = make_pipeline(model);
  pipeline.callbacks().observe([](Rank, Action action, ActionPhase phase) {
    if (phase == ActionPhase::kBegin && to_string(action) == "1B1") throw Boom();
  });
  EXPECT_THROW(pipeline.step(random_batch(4, 8, 5, 1), kMeasured), StageError);
  const RunReport report = make_run_report(pipeline, {.failure = "1B1: no"});
  EXPECT_GT(report.not_run, 0);
  EXPECT_EQ(report.not_run, pipeline.report().not_run);
  EXPECT_TRUE(report.comparison.schedules.empty());
  EXPECT_THAT(draw_report(report), HasSubstr("1B1: no"));
  EXPECT_GT(report.ranks[0].recorded_peak.value_or(0), 0);
}

// Every rank gathers the same run: numbers as each recorded them, on one clock.
TEST(Runner, GathersARunOfAllRanks) {
  const ScheduleCase schedule{.name = "1F1B", .ranks = 2, .microbatches = 3};
  const models::WholeModel model = models::multi_mlp(kWidth, 2);
  std::mutex mutex;
  std::vector<std::optional<RecordedRun>> runs(2);
  std::vector<RankRecording> own(2);
  std::vector<int64_t> peaks(2);
  run_spmd(schedule.source(), model.stages, {}, [&](Runner& runner, Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank().value());
    runner.step(part_of(batch_of(3), schedule.source().placement(), transport.rank()),
                {.microbatches = 3, .measure_memory = true});
    RecordedRun run = runner.recorded_run();
    const MemoryEstimate estimate = runner.peak_memory_estimate(3);
    const std::lock_guard lock(mutex);
    peaks[r] = estimate.peak();
    own[r] = runner.rank_recording();
    runs[r] = std::move(run);
  });
  ASSERT_TRUE(runs[0] && runs[1]);
  EXPECT_EQ(runs[0]->recording.ranks, runs[1]->recording.ranks);
  EXPECT_EQ(runs[0]->schedule_name, "1F1B");
  int64_t shifted = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    const RankRecording& gathered = runs[0]->recording.ranks[r];
    EXPECT_EQ(gathered.held, own[r].held);
    EXPECT_EQ(gathered.held_before, own[r].held_before);
    EXPECT_EQ(gathered.bytes_sent, own[r].bytes_sent);
    EXPECT_EQ(gathered.peak_memory, own[r].peak_memory);
    const int64_t shift = gathered.actions[0].begin - own[r].actions[0].begin;
    EXPECT_GE(shift, 0);
    shifted += shift > 0 ? 1 : 0;
    for (std::size_t i = 0; i < gathered.actions.size(); ++i) {
      EXPECT_EQ(gathered.actions[i].end - own[r].actions[i].end, shift);
      EXPECT_EQ(gathered.actions[i].sent, own[r].actions[i].sent);
    }
  }
  EXPECT_LE(shifted, 1);  // the clock begins with the first
  ASSERT_EQ(runs[0]->memory.size(), 2u);
  EXPECT_TRUE(runs[0]->memory[1].of(ActionType::kBackward).is_measured);
  EXPECT_GT(runs[0]->stages[1].parameters, 0);
  const MemoryEstimate estimate = estimate_memory(runs[0]->recording.schedule, runs[0]->memory);
  EXPECT_EQ(peaks, std::vector<int64_t>(2, estimate.peak()));
  const RunReport report = make_run_report(*runs[0]);
  EXPECT_TRUE(report.ranks[1].predicted_peak && report.ranks[1].recorded_peak);
}

TEST(Align, ClocksOfOtherMachinesMeetWhereTheirRanksMet) {
  const auto rank = [](int64_t zero, int64_t met) {
    GatheredRank one{.zero = zero, .met = met};
    one.recording.actions = {{0, 10, 0}};
    return one;
  };
  // One clock: rank 1 began 40 later, whatever it took to meet.
  std::vector<GatheredRank> same = {rank(1000, 5000), rank(1040, 5700)};
  align(same);
  EXPECT_EQ(same[0].recording.actions[0].begin, 0);
  EXPECT_EQ(same[1].recording.actions[0].begin, 40);
  // Another clock, far ahead: it began 700 before they met, rank 0 1000 before.
  const int64_t ahead = 3'600'000'000'000;
  std::vector<GatheredRank> other = {rank(4000, 5000), rank(ahead + 4300, ahead + 5000)};
  align(other);
  EXPECT_EQ(other[0].recording.actions[0].begin, 0);
  EXPECT_EQ(other[1].recording.actions[0].begin, 300);
  EXPECT_EQ(other[1].recording.actions[0].end, 310);
}

// While 0B was measured, a different rank released 40 bytes of this rank's account. Over many
// microbatches the prediction must not become negative.
TEST(EstimateMemory, AMicrobatchGivesBackNoMoreThanItTook) {
  std::vector<StageMemory> stages(1);
  stages[0].parameters = 1000;
  stages[0].gradients = 500;
  stages[0].of(ActionType::kForward) = {true, 60, 80};
  stages[0].of(ActionType::kBackward) = {true, -100, 10};
  const Schedule schedule = build_schedule("1F1B", {.ranks = 1, .microbatches = 3});
  const Simulation plan = simulate(schedule);
  const auto memory = estimate_memory_over_time(schedule, plan.timeline, stages);
  const std::vector<MemorySample> expected = {{0, 1500}, {0, 1580}, {1, 1560}, {1, 1570}, {3, 1500},
                                              {3, 1580}, {4, 1560}, {4, 1570}, {6, 1500}, {6, 1580},
                                              {7, 1560}, {7, 1570}, {9, 1500}};
  ASSERT_EQ(memory.size(), 1u);
  EXPECT_EQ(memory[0], expected);
  EXPECT_EQ(estimate_memory(schedule, stages).peak(), 1580);
  // What it keeps for good, such as outputs, stays.
  stages[0].of(ActionType::kBackward).change = -50;
  EXPECT_EQ(estimate_memory_over_time(schedule, plan.timeline, stages)[0].back().memory, 1530);
}

TEST(Resplit, KeepsTheModelsCost) {
  std::vector<StageCost> stages(3);
  stages[0].forward = 6;
  stages[1].forward = 3;
  stages[2].forward = 9;
  stages[1].backward = 12;
  const auto forwards = [&](int32_t count) {
    std::vector<double> all;
    for (const StageCost& cost : resplit_costs(stages, count)) all.push_back(cost.forward);
    return all;
  };
  EXPECT_EQ(forwards(3), (std::vector<double>{6, 3, 9}));
  EXPECT_EQ(forwards(1), (std::vector<double>{18}));
  EXPECT_EQ(forwards(6), (std::vector<double>{3, 3, 1.5, 1.5, 4.5, 4.5}));
  EXPECT_EQ(forwards(2), (std::vector<double>{7.5, 10.5}));
  EXPECT_EQ(resplit_costs(stages, 1)[0].full_backward(), 2 + 12 + 2);
}

TEST(Resplit, JoinedStagesSendOnlyAtTheirEnds) {
  std::vector<StageMemory> stages(2);
  for (StageMemory& stage : stages) {
    stage.parameters = 100;
    stage.of(ActionType::kForward) = {true, 50, 60};
    stage.of(ActionType::kSendForward) = {true, -10, 0};
    stage.of(ActionType::kBackward) = {true, -30, 5};
    stage.of(ActionType::kSendBackward) = {true, -10, 0};
  }
  const std::vector<StageMemory> joined = resplit_memory(stages, 1);
  EXPECT_EQ(joined[0].parameters, 200);
  EXPECT_EQ(joined[0].of(ActionType::kForward).change, 50 - 10 + 50);
  EXPECT_EQ(joined[0].of(ActionType::kForward).peak, 40 + 60);
  EXPECT_EQ(joined[0].of(ActionType::kSendForward).change, -10);
  EXPECT_EQ(joined[0].of(ActionType::kBackward).change, -30 - 10 - 30);
  EXPECT_EQ(joined[0].of(ActionType::kSendBackward).change, -10);
  const std::vector<StageMemory> halves = resplit_memory(stages, 4);
  EXPECT_EQ(halves[0].of(ActionType::kForward).change, 25);
  EXPECT_FALSE(halves[0].of(ActionType::kSendForward).is_measured);
  EXPECT_EQ(halves[1].of(ActionType::kSendForward).change, -10);
  EXPECT_FALSE(halves[1].of(ActionType::kSendBackward).is_measured);
}

}  // namespace
}  // namespace stagecraft
