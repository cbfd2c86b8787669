#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/base/shard_kind.h"
#include "stagecraft/shard/shard_group.h"
#include "stagecraft/shard/shard_unit.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// The sharded parameters of one rank. All trainable parameters of a stage that have one type and
/// device are a unit, or several if modules are named; parameters that several stages of the rank
/// hold, and copies of tied weights, are units of their own. Frozen parameters and buffers stay
/// whole.
///
/// Runners over the same parameters, such as one for evaluation, share this object. Used by one
/// thread at a time.
class ParameterShards {
 public:
  /// Moves the parameters of the stages into flat buffers. `is_tied`: whether a parameter of a
  /// stage, by its name, is a copy of a tied weight. `modules`: the parameters of each are a unit
  /// of their own (PipelineOptions::shard_units). ArgumentError for a parameter that cannot be
  /// sharded. REQUIRES a kind other than kNone.
  ParameterShards(ShardKind kind, ShardGroup group, std::span<const Stage> stages,
                  const std::function<bool(StageId, const std::string&)>& is_tied,
                  std::vector<std::string> modules = {});

  ShardKind kind() const { return kind_; }
  const ShardGroup& group() const { return group_; }
  /// Modules that were named. Those without a parameter on this rank have no unit.
  const std::vector<std::string>& modules() const { return modules_; }
  bool has_module(std::size_t module) const { return has_module_[module]; }
  std::span<const std::unique_ptr<ShardUnit>> units() const { return units_; }
  /// The units with parameters of a stage.
  const std::vector<ShardUnit*>& units_of(StageId stage) const;
  /// The unit of a parameter; null if it is whole.
  ShardUnit* find_unit(const at::Tensor& parameter) const;
  /// Whether a tensor shares the memory of a flat buffer.
  bool is_part_of(const at::Tensor& tensor) const;

  /// Called before a step. ArgumentError, which names the parameter, if the data of a parameter was
  /// replaced, or if a parameter that is whole has become trainable.
  void check(std::span<const Stage> stages) const;

  /// Gathers the pieces of all replicas, so that every parameter has its values: after an update of
  /// the pieces with kOptimizer and kGradients, and to read weights with kParameters, which then
  /// has them until `release`. Called by the group's ranks together, between steps. Throws as
  /// transfers do; then it can be called again.
  void gather(Transport& transport, Deadline deadline);
  /// The same for the parameters of one stage: those that its UNSHARD gathers.
  void gather_stage(StageId stage, Transport& transport, Deadline deadline);
  /// With kParameters: copies this replica's pieces from parameters that were written, after
  /// `gather`.
  void keep();
  /// With kParameters: releases the memory of whole parameters.
  void release();

  /// Releases the gradients of pieces and parameters.
  void zero_grad();
  /// Bytes of this replica's pieces, and of the memory that whole parameters have now.
  int64_t piece_bytes() const;
  int64_t whole_bytes() const;

 private:
  void gather(std::span<ShardUnit* const> units, Transport& transport, Deadline deadline) const;

  ShardKind kind_;
  ShardGroup group_;
  std::vector<std::string> modules_;
  std::vector<bool> has_module_;
  std::vector<std::unique_ptr<ShardUnit>> units_;
  std::unordered_map<int32_t, std::vector<ShardUnit*>> by_stage_;
  std::unordered_map<const c10::TensorImpl*, ShardUnit*> by_parameter_;
};

}  // namespace stagecraft
