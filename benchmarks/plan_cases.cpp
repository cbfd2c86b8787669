#include "benchmarks/plan_cases.h"

#include <cmath>

#include <fmt/format.h>

#include "stagecraft/base/check.h"

namespace stagecraft::bench {
namespace {

const PaperSetting kS15x24{"1.5B", 8, 24, 1, 18522, 18086, 9337, 601};
const PaperSetting kS15x32{"1.5B", 8, 32, 1, 18513, 18086, 9331, 626};
const PaperSetting kS62x32{"6.2B", 8, 32, 1, 29802, 29428, 19530, 577};
const PaperSetting kS146x48{"14.6B", 16, 48, 1, 11347, 11248, 8132, 377};
const PaperSetting kV62x48{"6.2B", 16, 48, 2, 14407, 14380, 9676, 1610};
const PaperSetting kV146x96{"14.6B", 24, 96, 2, 6783, 6984, 5259, 758};
const PaperSetting kV283x128{"28.3B", 32, 128, 2, 9469, 9744, 7306, 892};

struct Row {
  double cap = 1;
  double bound = 0;
  double goal = 0;
  double published = 0;
};

std::vector<PlanCase> make(const PaperSetting& setting, Objective objective,
                           const std::vector<Row>& rows) {
  std::vector<PlanCase> cases;
  for (const Row& row : rows) {
    cases.push_back({fmt::format("{} {}{}x{} cap {}", to_string(objective),
                                 setting.stages_per_rank == 2 ? "V " : "", setting.ranks,
                                 setting.microbatches, row.cap) +
                         fmt::format(", {}", setting.model),
                     paper_problem(setting, row.cap, objective), row.bound, row.goal,
                     row.published});
  }
  return cases;
}

void append(std::vector<PlanCase>& all, std::vector<PlanCase> more) {
  for (PlanCase& one : more) all.push_back(std::move(one));
}

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  double next() {
    state_ += 0x9E3779B97F4A7C15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    z ^= z >> 31U;
    return static_cast<double>(z >> 11U) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

}  // namespace

ScheduleProblem paper_problem(const PaperSetting& setting, double cap, Objective objective) {
  double mf = 201216;
  double mw = 73728;
  if (setting.model == "6.2B") {
    mf = 303104;
    mw = 131072;
  } else if (setting.model == "14.6B") {
    mf = 378880;
    mw = 163840;
  } else if (setting.model == "28.3B") {
    mf = 454656;
    mw = 196608;
  }
  ScheduleProblem problem;
  const int32_t stages = setting.ranks * setting.stages_per_rank;
  StageLoad load;
  load.forward = setting.f;
  load.backward_input = setting.b;
  load.backward_weight = setting.w;
  load.memory_forward = mf;
  load.memory_input = mw;
  problem.stages.assign(static_cast<std::size_t>(stages), load);
  problem.placement =
      Placement::from_style(setting.stages_per_rank == 2 ? "v" : "loop", setting.ranks, stages);
  problem.ranks.assign(static_cast<std::size_t>(setting.ranks), {.cap = cap * stages * mf});
  problem.link.latency = setting.latency;
  problem.microbatches = setting.microbatches;
  problem.objective = objective;
  return problem;
}

ScheduleProblem unit_problem(int32_t ranks, int32_t k) {
  ScheduleProblem problem;
  problem.stages.assign(2 * static_cast<std::size_t>(ranks), StageLoad{});
  problem.placement = Placement::v(ranks, 2 * ranks);
  problem.ranks.assign(static_cast<std::size_t>(ranks), {.cap = static_cast<double>(k)});
  problem.microbatches = 3 * ranks;
  problem.objective = Objective::kSpan;
  return problem;
}

ScheduleProblem family_h(const FamilyH& h) {
  ScheduleProblem problem;
  const int32_t stages = h.ranks * h.stages_per_rank;
  problem.placement = Placement::from_style(h.placement, h.ranks, stages);
  SplitMix random(h.seed);
  std::vector<double> held(static_cast<std::size_t>(h.ranks), 0.0);
  for (int32_t s = 0; s < stages; ++s) {
    const double z = 1 + h.spread * (2 * random.next() - 1);
    const double y = 1 + (h.spread / 2) * (2 * random.next() - 1);
    StageLoad load;
    load.forward = std::round(1000 * z);
    load.backward_input = load.forward;
    load.backward_weight = std::round(800 * z);
    load.memory_forward = std::round(100 * y);
    load.memory_input = std::round(0.4 * load.memory_forward);
    held[problem.placement.get_rank(StageId(s)).position()] += load.memory_forward;
    problem.stages.push_back(load);
  }
  for (int32_t r = 0; r < h.ranks; ++r) {
    problem.ranks.push_back({.cap = std::round(h.cap * h.ranks * held[r])});
  }
  problem.link.latency = 20;
  problem.microbatches = h.microbatches;
  return problem;
}

std::string to_string(const FamilyH& h) {
  return fmt::format("H({},{},{},{},{},{},{})", h.ranks, h.stages_per_rank,
                     h.stages_per_rank == 1 ? "-" : h.placement, h.microbatches, h.seed, h.spread,
                     h.cap);
}

std::vector<PlanCase> single_stage_cases() {
  std::vector<PlanCase> all;
  append(all, make(kS15x24, Objective::kSpan,
                   {{1, 1310405, 1310405, .1585},
                    {1.125, 1264460, 1264460, .1339},
                    {1.25, 1218515, 1218515, .1068},
                    {1.5, 1163608, 1163608, .0719},
                    {2, 1152599, 1152599, .0433}}));
  append(all, make(kS15x32, Objective::kSpan,
                   {{1.125, 1632234, 1632234, .1043},
                    {1.25, 1586304, 1586304, .0827},
                    {1.5, 1531074, 1531074, .0456},
                    {1.75, 1494048, 1494048, .0231},
                    {1.875, 1475535, 1475535, .0039},
                    {2, 1469760, 1472300, .0039}}));
  append(all, make(kS62x32, Objective::kSpan,
                   {{1.125, 2735616, 2735616, .0820},
                    {1.25, 2674790, 2674790, .0645},
                    {1.5, 2615186, 2615186, .0363},
                    {1.75, 2555582, 2555582, .0138},
                    {2, 2520320, 2525780, .0022}}));
  append(all, make(kS146x48, Objective::kSpan,
                   {{1.125, 1653007, 1653007, .1115},
                    {1.25, 1609538, 1609538, .0837},
                    {1.5, 1564150, 1564150, .0571},
                    {1.75, 1518762, 1518762, .0289},
                    {2, 1474896, 1484721, .0066}}));
  return all;
}

std::vector<PlanCase> v_cases() {
  std::vector<PlanCase> all;
  append(all, make(kV62x48, Objective::kSpan,
                   {{.625, 4430753, 4430753 * 1.0001},
                    {.75, 4276901, 4276901 * 1.0001},
                    {1, 3969197, 3969197 * 1.0001, .0697},
                    {1.25, 3728854, 3768000, .0306},
                    {1.5, 3692448, 3716451, .0065},
                    {2, 3692448, 3692448, .0035}}));
  append(all, make(kV146x96, Objective::kSpan,
                   {{.625, 4169532, 4169532 * 1.001},
                    {.75, 4055376, 4055376 * 1.008},
                    {1, 3827064, 3827064, .0483},
                    {1.25, 3652992, 3652992 * 1.017, .0176},
                    {1.5, 3652992, 3652992 * 1.003, .0029},
                    {2, 3652992, 3652992, .0029}}));
  append(all, make(kV283x128, Objective::kSpan,
                   {{1, 7090101, 7090101, .0451},
                    {1.5, 6788864, 6788864 * 1.003, .0024},
                    {2, 6788864, 6788864, .0024}}));
  return all;
}

std::vector<PlanCase> unit_cases() {
  std::vector<PlanCase> all;
  const auto add = [&](int32_t p, const std::vector<int32_t>& bubbles) {
    for (std::size_t i = 0; i < bubbles.size(); ++i) {
      const int32_t k = p + static_cast<int32_t>(i);
      const double work = 6.0 * 3 * p;
      // The frontier is 6p - 1 - 3k; beyond it nothing but the work bounds.
      all.push_back(
          {fmt::format("unit p {} k {}", p, k), unit_problem(p, k), 0, work + bubbles[i]});
    }
  };
  add(4, {11, 8, 5, 3, 0});
  add(8, {23, 20, 17, 14, 11, 8, 5, 3, 0});
  return all;
}

std::vector<PlanCase> step_cases() {
  std::vector<PlanCase> all;
  append(all, make(kS15x24, Objective::kStep,
                   {{1, 1310405, 1310405 * 1.0001},
                    {1.125, 1264460, 1264460 * 1.0001},
                    {1.25, 1236541, 1236541 * 1.0001},
                    {2, 1236541, 1236541 * 1.0001}}));
  append(all, make(kS62x32, Objective::kStep,
                   {{1, 2814376, 2814376 * 1.0001},
                    {1.25, 2732973, 2732973 * 1.0001},
                    {2, 2732973, 2732973 * 1.0001}}));
  append(all, make(kS146x48, Objective::kStep,
                   {{1, 1714461, 1714461 * 1.0001},
                    {1.25, 1650756, 1650756 * 1.0001},
                    {2, 1650756, 1650756 * 1.0001}}));
  append(all, make(kV62x48, Objective::kStep,
                   {{.625, 4430753, 4430753},
                    {1, 3980598, 3980598 * 1.0045},
                    {1.25, 3932703, 3932703 * 1.002},
                    {1.5, 3932703, 3932703},
                    {2, 3932703, 3932703}}));
  return all;
}

std::vector<PlanCase> named_h_cases() {
  std::vector<PlanCase> all;
  const auto add = [&](const FamilyH& h, double bound, double goal) {
    all.push_back({to_string(h), family_h(h), bound, goal});
  };
  add({8, 1, "loop", 24, 1, .2, 1.1}, 84741, 84741);
  add({16, 1, "loop", 32, 3, .4, 1.5}, 121867, 121867);
  add({8, 2, "v", 32, 5, .2, .9}, 214486, 214486);
  add({16, 2, "v", 48, 7, .4, 1.3}, 352057, 352800);
  add({8, 2, "loop", 24, 13, .2, 1.5}, 154896, 154896);
  add({16, 2, "loop", 32, 15, .4, .9}, 209111, 211900);
  add({8, 2, "v", 16, 6, .3, 1.1}, 97678, 99300);
  return all;
}

std::vector<PlanCase> many_h_cases() {
  std::vector<PlanCase> all;
  const int32_t ranks[] = {4, 8, 16};
  const double spreads[] = {.1, .2, .3, .4};
  const double caps[] = {.9, 1.1, 1.3, 1.7};
  for (uint64_t i = 0; i < 48; ++i) {
    FamilyH h;
    h.ranks = ranks[i % 3];
    h.stages_per_rank = i % 4 == 0 ? 1 : 2;
    h.placement = i % 4 == 3 ? "loop" : (i % 4 == 0 ? "loop" : "v");
    h.microbatches = h.ranks * static_cast<int32_t>(2 + i / 3 % 3);
    h.seed = 100 + i;
    h.spread = spreads[i / 2 % 4];
    h.cap = caps[i / 5 % 4];
    all.push_back({to_string(h), family_h(h), 0, 0});
  }
  return all;
}

}  // namespace stagecraft::bench
