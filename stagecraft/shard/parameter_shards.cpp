#include "stagecraft/shard/parameter_shards.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/shard/all_gather.h"

namespace stagecraft {
namespace {

/// Parameters that will be one unit.
struct Draft {
  std::vector<StageId> holders;
  std::vector<ShardUnit::Parameter> parameters;
  bool is_tied = false;
  std::size_t module = 0;  // the number of modules: none

  bool takes(const Draft& other) const {
    const at::Tensor& own = parameters.front().tensor;
    const at::Tensor& tensor = other.parameters.front().tensor;
    return !is_tied && !other.is_tied && module == other.module && holders == other.holders &&
           own.scalar_type() == tensor.scalar_type() && own.device() == tensor.device();
  }
};

// The innermost module that has the parameter: "blocks.1" has "blocks.1.weight", but not
// "blocks.10.weight".
std::size_t module_of(std::string_view name, const std::vector<std::string>& modules) {
  std::size_t found = modules.size();
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const std::string& module = modules[i];
    const bool has_it = name == module || (name.starts_with(module) && name[module.size()] == '.');
    if (has_it && (found == modules.size() || module.size() > modules[found].size())) found = i;
  }
  return found;
}

// A draft for each parameter, with the stages that hold it.
std::vector<Draft> drafts_of(std::span<const Stage> stages,
                             const std::function<bool(StageId, const std::string&)>& is_tied,
                             const std::vector<std::string>& modules) {
  std::vector<Draft> drafts;
  for (const Stage& stage : stages) {
    for (const auto& [name, tensor] : stage.parameters()) {
      const bool has_copies = is_tied(stage.index(), name);
      if (tensor.numel() == 0 || (!tensor.requires_grad() && !has_copies)) continue;
      require<ArgumentError>(!has_copies || tensor.is_contiguous(),
                             "stage {}: parameter \"{}\" is a tied weight, and must be contiguous "
                             "to be sharded",
                             stage.index().value(), name);
      auto known = std::ranges::find_if(drafts, [&tensor = tensor](const Draft& draft) {
        return draft.parameters.front().tensor.is_same(tensor);
      });
      if (known == drafts.end()) {
        drafts.push_back(
            {.holders = {}, .parameters = {{name, tensor}}, .module = module_of(name, modules)});
        known = drafts.end() - 1;
      }
      known->is_tied = known->is_tied || has_copies;
      if (known->holders.empty() || known->holders.back() != stage.index()) {
        known->holders.push_back(stage.index());
      }
    }
  }
  return drafts;
}

}  // namespace

ParameterShards::ParameterShards(ShardKind kind, ShardGroup group, std::span<const Stage> stages,
                                 const std::function<bool(StageId, const std::string&)>& is_tied,
                                 std::vector<std::string> modules)
    : kind_(kind),
      group_(std::move(group)),
      modules_(std::move(modules)),
      has_module_(modules_.size(), false) {
  SC_ASSERT(kind != ShardKind::kNone);
  std::vector<Draft> merged;
  for (Draft& draft : drafts_of(stages, is_tied, modules_)) {
    if (draft.module < modules_.size()) has_module_[draft.module] = true;
    const auto known =
        std::ranges::find_if(merged, [&](const Draft& other) { return other.takes(draft); });
    if (known == merged.end()) {
      merged.push_back(std::move(draft));
    } else {
      known->parameters.push_back(std::move(draft.parameters.front()));
    }
  }
  for (Draft& draft : merged) {
    units_.push_back(
        std::make_unique<ShardUnit>(std::move(draft.holders), static_cast<int32_t>(units_.size()),
                                    std::move(draft.parameters), draft.is_tied, group_, kind));
    ShardUnit* const unit = units_.back().get();
    for (const StageId stage : unit->holders()) by_stage_[stage.value()].push_back(unit);
    for (const ShardUnit::Parameter& parameter : unit->parameters()) {
      by_parameter_[parameter.tensor.unsafeGetTensorImpl()] = unit;
    }
  }
}

const std::vector<ShardUnit*>& ParameterShards::units_of(StageId stage) const {
  static const std::vector<ShardUnit*> none;
  const auto found = by_stage_.find(stage.value());
  return found == by_stage_.end() ? none : found->second;
}

ShardUnit* ParameterShards::find_unit(const at::Tensor& parameter) const {
  const auto found = by_parameter_.find(parameter.unsafeGetTensorImpl());
  return found == by_parameter_.end() ? nullptr : found->second;
}

bool ParameterShards::is_part_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  return std::ranges::any_of(units_, [&](const auto& unit) {
    return unit->flat().storage().unsafeGetStorageImpl() == storage;
  });
}

void ParameterShards::check(std::span<const Stage> stages) const {
  for (const auto& unit : units_) unit->check();
  for (const Stage& stage : stages) {
    for (const auto& [name, tensor] : stage.parameters()) {
      require<ArgumentError>(
          !tensor.requires_grad() || tensor.numel() == 0 || find_unit(tensor) != nullptr,
          "stage {}: parameter \"{}\" is trainable, but was frozen or not there when the replicas "
          "were sharded: create the Runner again",
          stage.index().value(), name);
    }
  }
}

void ParameterShards::gather(Transport& transport, Deadline deadline) {
  std::vector<ShardUnit*> all;
  for (const auto& unit : units_) all.push_back(unit.get());
  gather(all, transport, deadline);
}

void ParameterShards::gather_stage(StageId stage, Transport& transport, Deadline deadline) {
  gather(units_of(stage), transport, deadline);
}

void ParameterShards::gather(std::span<ShardUnit* const> units, Transport& transport,
                             Deadline deadline) const {
  std::vector<AllGather> gathers;
  gathers.reserve(units.size());
  for (ShardUnit* const unit : units) {
    if (kind_ == ShardKind::kParameters) unit->allocate();
    // No step has the number 0.
    const TransferId id{0, Direction::kWeights, unit->stage(), StageId(unit->number()),
                        MicrobatchId(0)};
    gathers.emplace_back(transport, group_, id, unit->flat(), unit->piece());
  }
  for (AllGather& gather : gathers) gather.wait(deadline);
  for (AllGather& gather : gathers) {
    for (const PendingPtr& send : gather.take_sends()) transport.wait_send(send, deadline);
  }
}

void ParameterShards::keep() {
  for (const auto& unit : units_) unit->keep();
}

void ParameterShards::release() {
  for (const auto& unit : units_) {
    if (kind_ == ShardKind::kParameters) unit->release();
  }
}

void ParameterShards::zero_grad() {
  for (const auto& unit : units_) {
    unit->piece().mutable_grad().reset();
    unit->has_grad().assign(unit->segments().size(), false);
    for (const ShardUnit::Parameter& parameter : unit->parameters()) {
      parameter.tensor.mutable_grad().reset();
    }
  }
}

int64_t ParameterShards::piece_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit->piece_bytes();
  return bytes;
}

int64_t ParameterShards::whole_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : units_) {
    if (unit->is_allocated()) bytes += unit->piece_bytes() * group_.size();
  }
  return bytes;
}

}  // namespace stagecraft
