#include "stagecraft/runtime/step_meeting.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/version.h"
#include "stagecraft/transport/fingerprint.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

std::string text_of(const InputPort& port) {
  return fmt::format("{}.{}{}", port.stage.value(), port.position, port.name);
}

std::string text_of(const Ports& ports) {
  std::string text = ports.has_chain() ? "a chain" : "no chain";
  for (const Ports::Connection& each : ports.connections()) {
    text +=
        fmt::format(", {}.{} to {}", each.from.stage.value(), each.from.output, text_of(each.to));
  }
  for (const Ports::Feed& feed : ports.feeds()) {
    text +=
        fmt::format(", input {} to {}", feed.argument ? std::to_string(*feed.argument) : feed.name,
                    text_of(feed.to));
  }
  return text;
}

std::string text_of(const std::vector<TiedWeight>& ties) {
  std::vector<std::string> groups;
  for (const TiedWeight& tie : ties) {
    std::vector<std::string> copies;
    for (const ParameterRef& ref : tie) {
      copies.push_back(fmt::format("{} of stage {}", ref.name, ref.stage.value()));
    }
    groups.push_back(fmt::format("{}", fmt::join(copies, " = ")));
  }
  return groups.empty() ? "none" : fmt::format("{}", fmt::join(groups, ", "));
}

// Empty for stages without parameters.
std::string devices_of(std::span<const Stage> stages) {
  std::set<std::string> kinds;
  for (const Stage& stage : stages) {
    for (const auto& [name, parameter] : stage.parameters()) {
      kinds.insert(c10::DeviceTypeName(parameter.device().type(), /*lower_case=*/true));
    }
  }
  return fmt::format("{}", fmt::join(kinds, " and "));
}

// A module that no rank has is a wrong name, which would otherwise have no effect.
void check_shard_units(Transport& transport, const ParameterShards& shards, Deadline deadline) {
  const std::size_t count = shards.modules().size();
  if (count == 0) return;
  std::string own;
  for (std::size_t i = 0; i < count; ++i) own += shards.has_module(i) ? '1' : '0';
  const std::vector<c10::IValue> all = transport.all_gather(own, deadline);
  for (std::size_t i = 0; i < count; ++i) {
    require<MetadataError>(
        std::ranges::any_of(all, [&](const auto& rank) { return rank.toStringRef()[i] == '1'; }),
        "PipelineOptions::shard_units: no stage has parameters to shard in a module \"{}\"",
        shards.modules()[i]);
  }
}

c10::IValue announcement_value(const StepAnnouncement& step) {
  return tree::tuple({step.is_training, static_cast<int64_t>(step.microbatches),
                      static_cast<int64_t>(step.draw), static_cast<int64_t>(step.schedule),
                      step.everywhere, step.rows, step.reduce_grads,
                      static_cast<int64_t>(step.local_grads), static_cast<int64_t>(step.shapes)});
}

StepAnnouncement announcement_of(const c10::IValue& value) {
  const std::vector<c10::IValue> parts = value.toTupleRef().elements().vec();
  return {.is_training = parts[0].toBool(),
          .microbatches = static_cast<int32_t>(parts[1].toInt()),
          .draw = static_cast<uint64_t>(parts[2].toInt()),
          .schedule = static_cast<uint64_t>(parts[3].toInt()),
          .reduce_grads = parts[6].toBool(),
          .local_grads = static_cast<int32_t>(parts[7].toInt()),
          .everywhere = parts[4].toBool(),
          .shapes = static_cast<uint64_t>(parts[8].toInt()),
          .rows = parts[5].toDouble()};
}

// The likeliest cause first: the later values depend on the earlier ones.
Fingerprint fingerprint_of(const StepAnnouncement& step) {
  Fingerprint own = {{"the call", step.is_training ? "step" : "eval"},
                     {"the number of microbatches", std::to_string(step.microbatches)}};
  own.emplace_back("the number of completed steps",
                   std::to_string(step.draw & ~(uint64_t{1} << 63U)));
  own.emplace_back("the schedule's checksum", fmt::format("{:016x}", step.schedule));
  own.emplace_back("StepOptions::reduce_grads", step.reduce_grads ? "true" : "false");
  return own;
}

bool is_same(const StepAnnouncement& a, const StepAnnouncement& b) {
  return a.is_training == b.is_training && a.microbatches == b.microbatches && a.draw == b.draw &&
         a.schedule == b.schedule && a.reduce_grads == b.reduce_grads;
}

// "rank 3 has local gradients of 2 parameters, but rank 1, which has the same stages, of 0": the
// ranks of each replica have their own stages, so that only ranks of the same place are compared.
std::string describe_local_grads(std::span<const StepAnnouncement> ranks,
                                 const ReplicaPlace& place) {
  std::string text;
  for (std::size_t rank = static_cast<std::size_t>(place.ranks); rank < ranks.size(); ++rank) {
    const std::size_t first = rank % static_cast<std::size_t>(place.ranks);
    if (ranks[rank].local_grads == ranks[first].local_grads) continue;
    text += fmt::format(
        "{}rank {} has local gradients of {} parameters, but rank {}, which has the same stages, "
        "of {}",
        text.empty() ? "" : "; ", rank, ranks[rank].local_grads, first, ranks[first].local_grads);
  }
  return text;
}

}  // namespace

void compare_pipelines(Transport& transport, const PipelineCore& core,
                       std::span<const Stage> stages, const ParameterShards* shards,
                       Deadline deadline) {
  // A rank whose stages have no parameters takes over the device type of the first rank that has
  // some.
  std::string devices = devices_of(stages);
  for (const c10::IValue& other : transport.all_gather(devices, deadline)) {
    if (devices.empty()) devices = other.toStringRef();
  }
  handshake(transport,
            {{"version", std::string(version())},
             {"schedule", core.source.name()},
             {"the number of stages", std::to_string(core.placement().num_stages())},
             {"placement", to_string(core.placement())},
             {"ports", text_of(core.ports)},
             {"tied weights", text_of(core.options.ties)},
             {"replicas", std::to_string(core.options.replicas)},
             {"what replicas shard", std::string(to_string(core.options.shard))},
             {"the modules that replicas shard as units",
              core.options.shard_units.empty()
                  ? "none"
                  : fmt::format("{}", fmt::join(core.options.shard_units, ", "))},
             {"seed", core.options.random == RandomSource::kProcess ? "of each process"
                                                                    : std::to_string(core.seed)},
             {"device type", devices}},
            deadline);
  if (shards != nullptr) check_shard_units(transport, *shards, deadline);
}

uint64_t checksum_of(const Schedule& schedule) {
  uint64_t sum = 0;
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) {
      const uint64_t bits = action.bits();
      sum = detail::checksum(std::as_bytes(std::span(&bits, 1)), sum);
    }
    const uint64_t size = list.size();
    sum = detail::checksum(std::as_bytes(std::span(&size, 1)), sum);
  }
  return sum;
}

std::vector<StepAnnouncement> announce_step(Transport& transport, const StepAnnouncement& own,
                                            const ReplicaPlace& place, Deadline deadline) {
  std::vector<StepAnnouncement> ranks;
  for (const c10::IValue& value : transport.all_gather(announcement_value(own), deadline)) {
    ranks.push_back(announcement_of(value));
  }
  if (std::all_of(ranks.begin(), ranks.end(),
                  [&](const auto& each) { return is_same(each, own); })) {
    detail::require_agreement(describe_local_grads(ranks, place));
    return ranks;
  }
  std::vector<Fingerprint> by_rank;
  for (const StepAnnouncement& step : ranks) by_rank.push_back(fingerprint_of(step));
  detail::require_agreement(describe_mismatch(by_rank));
  return ranks;
}

double share_of_replica(std::span<const StepAnnouncement> ranks, const ReplicaPlace& place) {
  double total = 0;
  double own = 0;
  for (int32_t replica = 0; replica < place.replicas; ++replica) {
    double rows = 0;
    for (int32_t r = 0; r < place.ranks; ++r) {
      const Rank rank(replica * place.ranks + r);
      rows = std::max(rows, ranks[rank.position()].rows);
    }
    if (rows <= 0) return 1.0 / place.replicas;
    total += rows;
    if (replica == place.replica()) own = rows;
  }
  return own / total;
}

}  // namespace stagecraft
