#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/base/shard_kind.h"
#include "stagecraft/shard/flat_layout.h"
#include "stagecraft/shard/shard_group.h"

namespace stagecraft {

/// The elements of a dense tensor in the order of memory, in one dimension, without history.
at::Tensor in_memory_order(const at::Tensor& tensor);

/// Parameters that are sharded together. They have one type and device and lie in one flat buffer.
/// Each replica owns a piece of the buffer. The parameters stay the tensors that they were, with
/// their names and shapes, and are views of the buffer.
///
/// With ShardKind::kParameters the piece has memory of its own, and the buffer has memory only
/// while it is allocated. While it has none, an access to the elements of a parameter throws an
/// error of torch that names the stage and the parameters (with torch 2.11 the memory is null).
/// With the other kinds the buffer always has memory, and the piece is a part of it, so that writes
/// to parameters take effect.
class ShardUnit {
 public:
  /// A parameter of the unit.
  struct Parameter {
    std::string name;
    at::Tensor tensor;
  };

  /// `holders`: the stages of this rank that hold the parameters. `is_tied`: the only parameter is
  /// a copy of a tied weight. Moves the parameters into the buffer. REQUIRES at least one
  /// parameter, with elements, all of one type and device. ArgumentError for a parameter whose
  /// elements are not dense in memory.
  ShardUnit(std::vector<StageId> holders, int32_t number, std::vector<Parameter> parameters,
            bool is_tied, const ShardGroup& group, ShardKind kind);
  ShardUnit(const ShardUnit&) = delete;
  ShardUnit& operator=(const ShardUnit&) = delete;

  const std::vector<StageId>& holders() const { return holders_; }
  StageId stage() const { return holders_.front(); }
  int32_t number() const { return number_; }  ///< among the units of the rank
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const FlatLayout& layout() const { return layout_; }
  /// The parts of parameters in this replica's piece.
  const std::vector<ShardSegment>& segments() const { return segments_; }
  bool is_tied() const { return is_tied_; }

  const at::Tensor& flat() const { return flat_; }
  /// This replica's elements. Its gradient (`mutable_grad`) has the sums of gradients with
  /// kGradients and kParameters.
  const at::Tensor& piece() const { return piece_; }
  /// Whether a segment has a gradient: a parameter that no replica used has none.
  std::vector<bool>& has_grad() { return has_grad_; }
  const std::vector<bool>& has_grad() const { return has_grad_; }

  /// The values of a segment, and their gradients (undefined if there are none): those of the piece
  /// or, with kOptimizer, those of the parameter.
  at::Tensor value(std::size_t segment) const;
  at::Tensor grad(std::size_t segment) const;

  /// Whether the buffer has memory.
  bool is_allocated() const { return is_allocated_; }
  /// With kParameters. `allocate` gives the buffer memory and copies this replica's piece into it,
  /// `release` releases the memory.
  void allocate();
  void release();
  /// With kParameters: copies this replica's part of the buffer into the piece.
  void keep();

  /// ArgumentError, which names the parameter, if a parameter is no longer a view of the buffer.
  void check() const;
  /// ArgumentError, which names the parameter, if a parameter was written in place since
  /// `allocate`.
  void check_unwritten() const;

  /// Bytes of the piece.
  int64_t piece_bytes() const;

 private:
  std::string describe() const;

  std::vector<StageId> holders_;
  int32_t number_;
  std::vector<Parameter> parameters_;
  FlatLayout layout_;
  bool is_tied_;
  int32_t own_;
  ShardKind kind_;
  std::vector<ShardSegment> segments_;
  at::Tensor flat_;
  at::Tensor piece_;
  std::vector<bool> has_grad_;     // by segment
  std::vector<int64_t> versions_;  // of the parameters, at `allocate`
  bool is_allocated_ = true;
};

}  // namespace stagecraft
