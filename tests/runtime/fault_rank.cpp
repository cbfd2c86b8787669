#include "tests/runtime/fault_rank.h"

#include <array>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <unistd.h>

#include <fmt/format.h>

#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {
namespace {

const char* name_of(Fault::Strike strike) {
  switch (strike) {
    case Fault::Strike::kKill:
      return "is killed";
    case Fault::Strike::kStop:
      return "is stopped";
    case Fault::Strike::kExit:
      return "exits";
    case Fault::Strike::kThrow:
      return "throws";
  }
  return "";
}

void strike_down(Fault::Strike strike) {
  switch (strike) {
    case Fault::Strike::kKill:
      raise(SIGKILL);
      return;
    case Fault::Strike::kStop:
      raise(SIGSTOP);
      return;
    case Fault::Strike::kExit:
      _exit(3);
    case Fault::Strike::kThrow:
      throw std::runtime_error("no space left on device");
  }
}

}  // namespace

std::string to_string(const Fault& fault) {
  return fmt::format("{}: rank {} {} at its action {}", to_string(fault.schedule), fault.victim,
                     name_of(fault.strike), fault.action);
}

Fault random_fault(std::mt19937_64& random, const std::vector<ScheduleCase>& schedules) {
  Fault fault;
  fault.schedule = schedules[random() % schedules.size()];
  fault.victim = static_cast<int32_t>(random() % static_cast<uint64_t>(fault.schedule.ranks));
  fault.strike = static_cast<Fault::Strike>(random() % 4);
  const auto schedule = fault.schedule.source().training(
      fault.schedule.microbatches, StageGraph::chain(fault.schedule.stages()));
  const std::size_t length = schedule->actions(Rank(fault.victim)).size();
  fault.action = static_cast<int32_t>(random() % (3 * length));
  return fault;
}

void train_until_fault(Transport& transport, const Fault& fault,
                       const std::function<void()>& on_strike,
                       const std::function<void()>& on_ready) {
  const Rank rank = transport.rank();
  const ScheduleSource source = fault.schedule.source();
  const TestModel model = chain_model(fault.schedule.stages(), 16);
  Runner runner(
      transport, stages_on(model, source.placement(), rank),
      runner_options(model, {.source = source, .timeout = std::chrono::seconds(20), .seed = 7}));
  int32_t actions = 0;
  runner.callbacks().observe([&](Rank, Action, ActionPhase phase) {
    if (rank.value() != fault.victim || phase != ActionPhase::kBegin) return;
    if (actions++ != fault.action) return;
    on_strike();
    strike_down(fault.strike);
  });
  // Values inside a frame, values that a thread of their own sends, and values after a frame.
  constexpr std::array<int32_t, 3> kRows = {2, 9000, 1200};
  for (int32_t step = 0; step < 1'000'000; ++step) {
    const int32_t rows = kRows[static_cast<std::size_t>(step % 3)] * fault.schedule.microbatches;
    const Microbatches batch =
        random_batch(fault.schedule.microbatches, rows, 16, static_cast<uint64_t>(step));
    runner.step(part_of(batch, source.placement(), rank),
                {.microbatches = fault.schedule.microbatches});
    if (step == 0 && on_ready) on_ready();
  }
}

std::string check_survivor(const Fault& fault, const std::string& type,
                           const std::string& message) {
  if (type != "PeerError") return fmt::format("it threw {}: {}", type, message);
  if (message.find(fmt::format("rank {}", fault.victim)) == std::string::npos) {
    return "it does not name the rank: " + message;
  }
  if (fault.strike == Fault::Strike::kThrow &&
      message.find("no space left on device") == std::string::npos) {
    return "it does not say why: " + message;
  }
  return {};
}

}  // namespace stagecraft
