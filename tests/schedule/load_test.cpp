#include "stagecraft/schedule/load.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

// What PyTorch prints for GPipe: REDUCE_GRAD, and no transfer.
constexpr std::string_view kPrinted = "0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n";
constexpr std::string_view kLowered =
    "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n";

class LoadSchedule : public testing::Test {
 protected:
  LoadSchedule() : folder_(fs::path(testing::TempDir()) / ("load_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~LoadSchedule() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  fs::path folder_;
};

TEST_F(LoadSchedule, BuildsByName) {
  const ScheduleShape shape{.ranks = 2, .microbatches = 3};
  const Schedule built = build_schedule("1F1B", shape);
  EXPECT_EQ(load_schedule("1f1b", {.shape = shape}), built);
  EXPECT_EQ(load_schedule("1F1B", {.shape = shape, .level = Level::kLowered}), lower(built));
  EXPECT_EQ(
      load_schedule("1F1B", {.shape = shape, .level = Level::kLowered, .lower = {.prefetch = 0}}),
      lower(built, {.prefetch = 0}));
  EXPECT_ERROR(load_schedule("1F1B"), ArgumentError, "1F1B needs ranks and microbatches");
  EXPECT_ERROR(load_schedule("DualPipeV", {.shape = shape}), ArgumentError,
               "the nearest legal value is 4");
}

TEST_F(LoadSchedule, ReadsFiles) {
  const Schedule mine = parse_csv("0F0,0B0\n1F0,1B0\n");
  EXPECT_EQ(load_schedule(write("mine.csv", to_csv(mine))), mine);
  EXPECT_EQ(load_schedule(write("mine.json", to_json(mine))), mine);
  EXPECT_EQ(load_schedule(write("mine.txt", "\n " + to_json(mine)), {.level = Level::kLowered}),
            lower(mine));
  EXPECT_ERROR(load_schedule(write("mine.csv", to_csv(mine)), {.shape = ScheduleShape{}}),
               ArgumentError, "mine.csv is a file, which has a shape of its own");
}

TEST_F(LoadSchedule, NamesTheFileAndThePlace) {
  EXPECT_ERROR(load_schedule("1F1C"), ArgumentError,
               "\"1F1C\" is neither a file nor a schedule; the schedules are GPipe, 1F1B");
  EXPECT_ERROR(load_schedule(write("bad.csv", "0F0,0Q0\n")), ScheduleError,
               "bad.csv: line 1, column 6: expected");
  EXPECT_ERROR(load_schedule(write("bad.json", "{}")), ScheduleError, "bad.json: ");
  EXPECT_ERROR(load_schedule(write("idle.csv", ",,\n")), ScheduleError,
               "idle.csv: the schedule has no action");
  EXPECT_ERROR(read_schedule((folder_ / "none.csv").string()), Error,
               "none.csv: No such file or directory");
  EXPECT_ERROR(read_schedule(folder_.string()), Error, ": Is a directory");
}

TEST_F(LoadSchedule, VerifiesAtTheLevelThatIsAskedFor) {
  const std::string stuck = write("stuck.csv", "0F0,0B0\n1B0,1F0\n");
  for (const std::optional<Level> level : {std::optional<Level>(), {Level::kLowered}}) {
    EXPECT_ERROR(load_schedule(stuck, {.level = level}), ScheduleError,
                 "rank 1, slot 0, 1B0: needs 1F0");
  }
  const std::string piece = write("piece.csv", "0F0,0F1,0B0\n1F0,1F1\n");
  EXPECT_ERROR(load_schedule(piece), ScheduleError, "0B1: is missing");
  EXPECT_EQ(load_schedule(piece, {.lower = {.mode = VerifyMode::kPartial}}).num_microbatches(), 2);
  EXPECT_ERROR(load_schedule(write("low.csv", kLowered), {.level = Level::kCompute}), ArgumentError,
               "expected a compute schedule, got a lowered one");
}

// A transfer makes a schedule lowered; UNSHARD, RESHARD and REDUCE_GRAD do not.
TEST_F(LoadSchedule, TakesWhatPyTorchPrintsForGPipe) {
  const Schedule printed = parse_schedule(kPrinted);
  EXPECT_EQ(printed.level(), Level::kCompute);
  const Schedule lowered =
      at_level(printed, Level::kLowered, StageGraph::chain(2), {.shard = false});
  EXPECT_EQ(to_csv(lowered), kLowered);
  // A lowered schedule is run as it is.
  EXPECT_EQ(parse_schedule(kLowered), lowered);
  EXPECT_EQ(at_level(lowered, Level::kLowered, StageGraph::chain(2)), lowered);
}

TEST_F(LoadSchedule, VerifiesForTheStageGraph) {
  const Schedule schedule = parse_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  const StageGraph skip = StageGraph::chain(3).with_edges(parse_edges("0-2"));
  const Schedule lowered = at_level(schedule, Level::kLowered, skip);
  EXPECT_EQ(lowered, lower(schedule, skip));
  EXPECT_ERROR(at_level(lowered, std::nullopt, StageGraph::of(3, {})), ScheduleError, "SEND_F0");
}

}  // namespace
}  // namespace stagecraft
