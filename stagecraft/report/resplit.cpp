#include "stagecraft/report/resplit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "stagecraft/base/assert.h"

namespace stagecraft {
namespace {

/// A piece of a measured stage that a new stage has.
struct Piece {
  std::size_t stage = 0;
  double share = 0;
  bool has_begin = false;  ///< of the measured stage
  bool has_end = false;
};

/// The pieces of new stage `number` of `count`, in the order of the model. Lengths are whole
/// numbers: the length of the model is stages * count.
std::vector<Piece> pieces_of(int64_t number, int64_t count, int64_t stages) {
  const int64_t begin = number * stages;
  const int64_t end = begin + stages;
  std::vector<Piece> pieces;
  for (int64_t s = begin / count; s * count < end; ++s) {
    const int64_t from = std::max(begin, s * count);
    const int64_t to = std::min(end, (s + 1) * count);
    pieces.push_back({static_cast<std::size_t>(s),
                      static_cast<double>(to - from) / static_cast<double>(count),
                      from == s * count, to == (s + 1) * count});
  }
  return pieces;
}

int64_t scaled(int64_t bytes, double share) {
  return std::llround(static_cast<double>(bytes) * share);
}

/// Appends an action that happens after those that `whole` has so far.
void append(ActionMemory& whole, const ActionMemory& part, double share) {
  if (!part.is_measured) return;
  whole.is_measured = true;
  whole.peak = std::max(whole.peak, whole.change + scaled(part.peak, share));
  whole.change += scaled(part.change, share);
}

void append_forward(StageMemory& whole, const StageMemory& stage, const Piece& piece,
                    bool is_last) {
  ActionMemory& forward = whole.of(ActionType::kForward);
  append(forward, stage.of(ActionType::kForward), piece.share);
  const ActionMemory& send = stage.of(ActionType::kSendForward);
  if (piece.has_end) append(is_last ? whole.of(ActionType::kSendForward) : forward, send, 1);
}

void append_backward(StageMemory& whole, const StageMemory& stage, const Piece& piece,
                     bool is_last) {
  for (const ActionType type : {ActionType::kBackward, ActionType::kBackwardInput}) {
    if (!stage.of(type).is_measured) continue;
    append(whole.of(type), stage.of(type), piece.share);
    if (piece.has_begin && !is_last) {
      append(whole.of(type), stage.of(ActionType::kSendBackward), 1);
    }
  }
  append(whole.of(ActionType::kBackwardWeight), stage.of(ActionType::kBackwardWeight), piece.share);
  if (piece.has_begin && is_last) {
    append(whole.of(ActionType::kSendBackward), stage.of(ActionType::kSendBackward), 1);
  }
}

}  // namespace

std::vector<StageCost> resplit_costs(std::span<const StageCost> stages, int32_t count) {
  SC_ASSERT(!stages.empty() && count > 0);
  std::vector<StageCost> result;
  for (int32_t j = 0; j < count; ++j) {
    StageCost& cost = result.emplace_back();
    cost.forward = cost.backward_input = cost.backward_weight = 0;
    cost.backward = 0;
    for (const Piece& piece : pieces_of(j, count, static_cast<int64_t>(stages.size()))) {
      const StageCost& stage = stages[piece.stage];
      cost.forward += piece.share * stage.forward;
      cost.backward_input += piece.share * stage.backward_input;
      cost.backward_weight += piece.share * stage.backward_weight;
      *cost.backward += piece.share * stage.full_backward();
    }
  }
  return result;
}

std::vector<StageMemory> resplit_memory(std::span<const StageMemory> stages, int32_t count) {
  SC_ASSERT(!stages.empty() && count > 0);
  std::vector<StageMemory> result;
  for (int32_t j = 0; j < count; ++j) {
    StageMemory& memory = result.emplace_back();
    memory.stage = StageId(j);
    const std::vector<Piece> pieces = pieces_of(j, count, static_cast<int64_t>(stages.size()));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const StageMemory& stage = stages[pieces[i].stage];
      memory.parameters += scaled(stage.parameters, pieces[i].share);
      memory.gradients += scaled(stage.gradients, pieces[i].share);
      append_forward(memory, stage, pieces[i], i + 1 == pieces.size());
    }
    for (std::size_t i = pieces.size(); i-- > 0;) {
      append_backward(memory, stages[pieces[i].stage], pieces[i], i == 0);
    }
  }
  return result;
}

}  // namespace stagecraft
