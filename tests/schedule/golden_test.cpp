#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/unit_steps.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

// What torch 2.13 makes of these shapes: NAME_lL_mbM_ppP_compute.csv is the order of a schedule
// class, ..._comms.csv the same after its lowering, simulated_steps.csv the length of its
// simulation.
const fs::path kFolder = SC_GOLDEN;

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  EXPECT_TRUE(in) << file;
  std::string text(std::istreambuf_iterator<char>(in), {});
  std::erase(text, '\r');
  return text;
}

int32_t number(std::string_view text) {
  int32_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  EXPECT_TRUE(error == std::errc() && end == text.data() + text.size()) << text;
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

struct Case {
  fs::path compute;
  fs::path comms;
  std::string name;
  ScheduleShape shape;
};

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder)) {
    const std::vector<std::string> parts = split(entry.path().stem().string(), '_');
    if (parts.size() != 5 || parts[4] != "compute") {
      continue;
    }
    std::string comms = entry.path().string();
    comms.replace(comms.rfind("compute"), 7, "comms");
    found.push_back({.compute = entry.path(),
                     .comms = comms,
                     .name = parts[0],
                     .shape = {.ranks = number(parts[3].substr(2)),
                               .microbatches = number(parts[2].substr(2)),
                               .stages_per_rank = number(parts[1].substr(1))}});
  }
  std::sort(found.begin(), found.end(),
            [](const Case& a, const Case& b) { return a.compute < b.compute; });
  return found;
}

TEST(Golden, HasAllCases) {
  EXPECT_EQ(cases().size(), 15U);
}

TEST(Golden, BuildersGiveTheOrder) {
  for (const Case& c : cases()) {
    EXPECT_EQ(to_csv(build_schedule(c.name, c.shape)), read(c.compute)) << c.compute;
  }
}

TEST(Golden, LoweringGivesTheTransfers) {
  for (const Case& c : cases()) {
    EXPECT_EQ(to_csv(lower(build_schedule(c.name, c.shape))), read(c.comms)) << c.comms;
  }
}

TEST(Golden, ReadingAndPrintingGivesTheFile) {
  for (const Case& c : cases()) {
    for (const fs::path& file : {c.compute, c.comms}) {
      const std::string text = read(file);
      const Schedule schedule = parse_csv(text);
      EXPECT_EQ(to_csv(schedule), text) << file;
      EXPECT_EQ(schedule.level(), file == c.comms ? Level::kLowered : Level::kCompute) << file;
      EXPECT_EQ(schedule.num_ranks(), c.shape.ranks) << file;
      EXPECT_EQ(schedule.num_microbatches(), c.shape.microbatches) << file;
      EXPECT_EQ(schedule.placement(), build_schedule(c.name, c.shape).placement()) << file;
    }
  }
}

TEST(Golden, ALoweredFileEqualsItsLoweredOrder) {
  for (const Case& c : cases()) {
    EXPECT_EQ(lower(parse_csv(read(c.compute))), parse_csv(read(c.comms))) << c.compute;
  }
}

// What torch 2.15 makes of some of these shapes; its compute lists are those of 2.13.
std::vector<Case> cases_of_torch_215() {
  std::vector<Case> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(kFolder / "torch-2.15")) {
    const std::vector<std::string> parts = split(entry.path().stem().string(), '_');
    EXPECT_EQ(parts.size(), 5U) << entry.path();
    found.push_back({.compute = {},
                     .comms = entry.path(),
                     .name = parts[0],
                     .shape = {.ranks = number(parts[3].substr(2)),
                               .microbatches = number(parts[2].substr(2)),
                               .stages_per_rank = number(parts[1].substr(1))}});
  }
  return found;
}

TEST(Golden, LoweringForTorch215GivesItsLists) {
  EXPECT_EQ(cases_of_torch_215().size(), 8U);
  for (const Case& c : cases_of_torch_215()) {
    const Schedule schedule = build_schedule(c.name, c.shape);
    EXPECT_EQ(to_csv(lower(schedule, {.target = LowerTarget::kTorch215})), read(c.comms))
        << c.comms;
    EXPECT_TRUE(verify(parse_csv(read(c.comms))).ok()) << c.comms;
    EXPECT_EQ(to_csv(parse_csv(read(c.comms))), read(c.comms));
  }
}

TEST(Golden, LoweringForTorch213GivesListsWithoutWaits) {
  for (const Case& c : cases()) {
    const Schedule schedule = build_schedule(c.name, c.shape);
    EXPECT_EQ(to_csv(lower(schedule, {.target = LowerTarget::kTorch213})), read(c.comms))
        << c.comms;
  }
}

// In torch 2.15 each wait for a send takes a step.
TEST(Golden, SimulationOfWaitsTakesAsManySteps) {
  const auto steps = [](std::string_view name) {
    const Schedule schedule =
        build_schedule(name, {.ranks = 4, .microbatches = 8, .stages_per_rank = 2});
    return simulate_unit_steps(lower(schedule, {.target = LowerTarget::kTorch215})).steps;
  };
  EXPECT_EQ(steps("Interleaved1F1B"), 188);
  EXPECT_EQ(steps("ZBVZeroBubble"), 172);
}

TEST(Golden, SimulationTakesAsManySteps) {
  const std::vector<std::string> rows = split(read(kFolder / "simulated_steps.csv"), '\n');
  ASSERT_EQ(rows.size(), 161U);
  ASSERT_EQ(rows[0], "schedule,n_local,n_microbatches,pp,simulated_steps");
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::vector<std::string> row = split(rows[i], ',');
    ASSERT_EQ(row.size(), 5U) << rows[i];
    const Schedule schedule = build_schedule(row[0], {.ranks = number(row[3]),
                                                      .microbatches = number(row[2]),
                                                      .stages_per_rank = number(row[1])});
    EXPECT_EQ(simulate_unit_steps(lower(schedule)).steps, number(row[4])) << rows[i];
  }
}

}  // namespace
}  // namespace stagecraft
