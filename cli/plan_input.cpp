#include "cli/plan_input.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/failure.h"
#include "cli/input.h"
#include "cli/lowering_options.h"
#include "cli/plan_search.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/schedule/json_input.h"

namespace stagecraft::cli {
namespace {

std::atomic<bool> interrupted = false;

void interrupt(int) {
  interrupted.store(true);
}

double read_time(const std::string& option, const std::string& text, std::string& unit) {
  const Quantity time = read_quantity(option, text);
  if (time.kind == QuantityKind::kMemory) {
    throw BadUsage(fmt::format("{} takes a time, got {}", option, quote(text)));
  }
  if (time.kind == QuantityKind::kTime) {
    if (!unit.empty() && unit != time.unit) {
      throw BadUsage(
          fmt::format("{}: the cost file has times in {}, got {}", option, unit, quote(text)));
    }
    unit = time.unit;
  }
  return time.value;
}

// One size for each microbatch. BadUsage unless all exceptions of a microbatch have the same
// proportion to the costs of the stages.
std::vector<double> sizes_of(const CostModel& costs, int32_t stages, int32_t microbatches) {
  if (costs.microbatches.empty()) return {};
  std::vector<double> sizes(static_cast<std::size_t>(microbatches), 1);
  std::vector<int32_t> given(sizes.size(), 0);
  for (const CostModel::PerMicrobatch& one : costs.microbatches) {
    const std::size_t m = one.microbatch.position();
    if (m >= sizes.size() || one.stage.value() >= stages) {
      throw BadUsage(fmt::format("\"microbatches\": there is no stage {} or no microbatch {}",
                                 one.stage.value(), one.microbatch.value()));
    }
    const StageCost& base = one.stage.position() < costs.stages.size()
                                ? costs.stages[one.stage.position()]
                                : costs.stage;
    const double size = base.forward > 0 ? one.cost.forward / base.forward : 1;
    const std::pair<double, double> pairs[] = {
        {base.backward_input, one.cost.backward_input},
        {base.backward_weight, one.cost.backward_weight},
        {base.memory_forward, one.cost.memory_forward},
        {base.memory_freed_by_weight, one.cost.memory_freed_by_weight}};
    bool fits = given[m] == 0 || std::abs(sizes[m] - size) <= 1e-6 * size;
    for (const auto& [plain, scaled] : pairs) {
      fits = fits && std::abs(plain * size - scaled) <= 1e-6 * std::max(scaled, 1e-12);
    }
    if (!fits) {
      throw BadUsage(fmt::format(
          "\"microbatches\": the costs of microbatch {} are not in one proportion to those of the "
          "stages; a plan needs one size a microbatch",
          m));
    }
    sizes[m] = size;
    ++given[m];
  }
  for (std::size_t m = 0; m < sizes.size(); ++m) {
    if (given[m] != 0 && given[m] != stages) {
      throw BadUsage(
          fmt::format("\"microbatches\": microbatch {} has a size of its own on {} of {} stages", m,
                      given[m], stages));
    }
  }
  return sizes;
}

/// Reads a cost file of stages. Its ranks and sizes are read as in a file of layers, the rest as in
/// a cost file for `simulate`.
LayerFile read_stage_file(const std::string& text, const PlanCommand& command) {
  nlohmann::json json = read_json(text);
  nlohmann::json extra = {{"layers", nlohmann::json::array({nlohmann::json::object()})}};
  if (json.is_object()) {
    for (const char* key : {"ranks", "sizes"}) {
      if (!json.contains(key)) continue;
      extra[key] = json[key];
      json.erase(key);
    }
  }
  LayerFile file = parse_layer_file(json_to_text(extra));
  const CostModel costs = parse_cost_file(json_to_text(json));
  const std::size_t ranks =
      command.ranks ? static_cast<std::size_t>(*command.ranks) : file.ranks.size();
  const std::vector<int32_t>& per_rank = command.search.stages_per_rank;
  const std::size_t stages =
      costs.stages.empty() ? ranks * static_cast<std::size_t>(per_rank.empty() ? 1 : per_rank[0])
                           : costs.stages.size();
  if (stages > kMostLayers) {
    throw BadUsage(fmt::format("a plan has at most {} stages, got {}", kMostLayers, stages));
  }
  const auto entry = [](const std::vector<double>& list, std::size_t i) {
    return list.empty() ? 0 : list[std::min(i, list.size() - 1)];
  };
  file.layers.clear();
  for (std::size_t s = 0; s < stages; ++s) {
    PlanLayer& layer = file.layers.emplace_back();
    layer.cost = s < costs.stages.size() ? costs.stages[s] : costs.stage;
    layer.output_bytes = entry(costs.output_bytes, s);
    layer.weights = entry(costs.weights, s);
  }
  file.link = costs.link;
  file.links = costs.links;
  file.memory = costs.memory_cap;
  if (file.sizes.empty()) {
    file.sizes = sizes_of(costs, static_cast<int32_t>(stages), command.microbatches);
  }
  return file;
}

LayerFile read_costs(const PlanCommand& command) {
  const std::string text = read_all(command.costs);
  try {
    return command.schedule_only ? read_stage_file(text, command) : parse_layer_file(text);
  } catch (const BadUsage& error) {
    throw BadUsage(fmt::format("{}: {}", name_of(command.costs), error.what()));
  } catch (const Error& error) {
    throw BadUsage(fmt::format("{}: {}", name_of(command.costs), error.what()));
  }
}

std::vector<PlanRank> make_ranks(const PlanCommand& command, const LayerFile& file, bool& bytes) {
  std::vector<PlanRank> ranks = file.ranks;
  if (ranks.empty()) {
    if (!command.ranks) throw BadUsage("plan needs --ranks, or \"ranks\" in the cost file");
    ranks = same_ranks(*command.ranks, file.memory);
  } else if (command.ranks && static_cast<std::size_t>(*command.ranks) != ranks.size()) {
    throw BadUsage(
        fmt::format("--ranks is {}, but the cost file has {} ranks", *command.ranks, ranks.size()));
  }
  for (PlanRank& rank : ranks) {
    if (!rank.memory) rank.memory = file.memory;
  }
  if (command.memory) set_memory(ranks, *command.memory, bytes);
  return ranks;
}

}  // namespace

namespace {

void check_sharding(const PlanCommand& command) {
  if (command.shard != "none" && command.replicas == 1) {
    throw BadUsage(
        fmt::format("--shard {} divides among replicas: pass --replicas, too", command.shard));
  }
  if (command.shard != "none" && command.schedule_only) {
    throw BadUsage(
        fmt::format("--shard {} needs costs of layers, and --schedule-only takes those of stages",
                    command.shard));
  }
  if (command.shard != "parameters" && (command.max_active_stages || command.lookahead)) {
    throw BadUsage(fmt::format("{} is for --shard parameters",
                               command.lookahead ? "--unshard-lookahead" : "--max-active-stages"));
  }
}

PlanSharding make_sharding(const PlanCommand& command, std::size_t ranks) {
  PlanSharding sharding{.replicas = command.replicas,
                        .kind = find_shard_kind(command.shard).value(),
                        .max_active_stages = command.max_active_stages};
  if (command.lookahead && command.lookahead != "least") {
    sharding.lookahead =
        parse_lookahead(*command.lookahead, static_cast<int32_t>(ranks),
                        command.max_active_stages.value_or(std::numeric_limits<int32_t>::max()));
  }
  return sharding;
}

}  // namespace

PlanProblem make_problem(const PlanCommand& command) {
  check_sharding(command);
  LayerFile file = read_costs(command);
  PlanProblem problem;
  problem.units = file.units;
  problem.ranks = make_ranks(command, file, problem.units.bytes);
  problem.layers = std::move(file.layers);
  problem.link = file.link;
  problem.links = std::move(file.links);
  problem.sizes = std::move(file.sizes);
  problem.input_bytes = file.input_bytes;
  problem.input_gradient = file.input_gradient;
  problem.microbatches = command.microbatches;
  problem.sharding = make_sharding(command, problem.ranks.size());
  if (command.latency) {
    problem.link.latency = read_time("--latency", *command.latency, problem.units.time);
  }
  if (command.bandwidth) {
    const Quantity bandwidth = read_quantity("--bandwidth", *command.bandwidth);
    if (bandwidth.kind == QuantityKind::kTime) {
      throw BadUsage(fmt::format("--bandwidth takes bytes for one unit of time, got {}",
                                 quote(*command.bandwidth)));
    }
    problem.link.bandwidth = bandwidth.value;
  }
  try {
    check_problem(problem);
  } catch (const ArgumentError& error) {
    throw BadUsage(fmt::format("{}: {}", name_of(command.costs), error.what()));
  }
  return problem;
}

PlanOptions make_plan_options(const PlanSearch& search) {
  PlanOptions options;
  if (!search.stages_per_rank.empty()) options.space.stages_per_rank = search.stages_per_rank;
  if (!search.placements.empty()) {
    options.space.placements.clear();
    for (const std::string& name : search.placements) {
      options.space.placements.push_back(name == "v" ? PlacementStyle::kV : PlacementStyle::kLoop);
    }
  }
  if (search.recompute == "none") options.space.recompute = RecomputeChoice::kNone;
  if (search.recompute == "all") options.space.recompute = RecomputeChoice::kAll;
  if (search.objective == "span") options.objective = Objective::kSpan;
  options.reorder = search.reorder;
  options.seed = static_cast<uint64_t>(search.seed);
  if (search.rounds) options.rounds = *search.rounds;
  options.time_limit = parse_time_limit("--time-limit", search.time_limit);
  return options;
}

Interrupt::Interrupt() {
  interrupted.store(false);
  struct sigaction action {};
  action.sa_handler = interrupt;
  // The second Ctrl-C has the default effect and ends the program.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
}

const std::atomic<bool>* Interrupt::flag() const {
  return &interrupted;
}

}  // namespace stagecraft::cli
