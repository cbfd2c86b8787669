#pragma once

#include <cstdint>
#include <span>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// The actions that have to be done before an action can start. They are defined only here. All of
/// them have the microbatch of the action.
///
///           on the same rank       other rank, compute    other rank, lowered
///   F       F of producers         F of producers         SEND_F of producers, own RECV_F
///   I, B    own F, gradients       gradients              SEND_B of consumers, own RECV_B
///           of consumers           of consumers
///   W       own I
///   SEND_F  own F                                         RECV_F of consumers, if sends block
///   SEND_B  own gradients                                 RECV_B of producers, if sends block
///   WAIT_SEND_F, WAIT_SEND_B
///           own SEND                                      the same receives, if sends or waits
///                                                         block
///
/// All other actions need nothing.
///
/// "Gradients" are made by B or I; they are visited as kBackward.
class Needs {
 public:
  /// Which actions last until the receives of a value are posted.
  enum class Blocks : uint8_t {
    kNothing,  ///< values are buffered
    kWaits,    ///< a send only posts; its wait lasts
    kSends,    ///< a send lasts, and so does its wait
  };

  /// The arguments must outlive the object.
  Needs(const Schedule& schedule, const StageGraph& graph, Blocks blocks)
      : graph_(graph),
        rank_of_(schedule.placement().ranks()),
        is_lowered_(schedule.level() == Level::kLowered),
        blocks_(blocks) {}

  /// Calls visit(type, stage) for each needed action; stops when visit returns false.
  template <typename Visit>
  void visit(Action action, Visit&& visit) const {
    const StageId stage = action.stage();
    switch (action.type()) {
      case ActionType::kForward:
        visit_values(stage, graph_.producers(stage), ActionType::kForward, ActionType::kRecvForward,
                     ActionType::kSendForward, visit);
        return;
      case ActionType::kBackwardInput:
      case ActionType::kBackward:
        if (!visit(ActionType::kForward, stage)) return;
        visit_values(stage, graph_.consumers(stage), ActionType::kBackward,
                     ActionType::kRecvBackward, ActionType::kSendBackward, visit);
        return;
      case ActionType::kBackwardWeight:
        visit(ActionType::kBackwardInput, stage);
        return;
      case ActionType::kSendForward:
        if (!visit(ActionType::kForward, stage)) return;
        if (blocks_ == Blocks::kSends) visit_receives(action, visit);
        return;
      case ActionType::kSendBackward:
        if (!visit(ActionType::kBackward, stage)) return;
        if (blocks_ == Blocks::kSends) visit_receives(action, visit);
        return;
      case ActionType::kWaitSendForward:
      case ActionType::kWaitSendBackward: {
        const Action send = action.with_type(send_of(action.type()));
        if (visit(send.type(), stage) && blocks_ != Blocks::kNothing) visit_receives(send, visit);
        return;
      }
      default:
        return;
    }
  }

  /// Calls visit(type, stage) for each receive of a SEND; stops when visit returns false.
  template <typename Visit>
  void visit_receives(Action send, Visit&& visit) const {
    const bool is_forward = send.type() == ActionType::kSendForward;
    const StageId stage = send.stage();
    for (const StageId reader : is_forward ? graph_.consumers(stage) : graph_.producers(stage)) {
      if (!is_elsewhere(stage, reader)) continue;
      if (!visit(is_forward ? ActionType::kRecvForward : ActionType::kRecvBackward, reader)) return;
    }
  }

  bool is_elsewhere(StageId stage, StageId other) const {
    return rank_of_[stage] != rank_of_[other];
  }
  /// Whether any of `others` is on a different rank than `stage`.
  bool any_elsewhere(StageId stage, std::span<const StageId> others) const {
    for (const StageId other : others) {
      if (is_elsewhere(stage, other)) return true;
    }
    return false;
  }

 private:
  template <typename Visit>
  void visit_values(StageId stage, std::span<const StageId> sources, ActionType made_by,
                    ActionType receive, ActionType send, Visit&& visit) const {
    bool received = false;
    for (const StageId source : sources) {
      if (!is_lowered_ || !is_elsewhere(stage, source)) {
        if (!visit(made_by, source)) return;
        continue;
      }
      if (!received && !visit(receive, stage)) return;
      received = true;
      if (!visit(send, source)) return;
    }
  }

  const StageGraph& graph_;
  const IndexedVector<StageId, Rank>& rank_of_;
  bool is_lowered_;
  Blocks blocks_;
};

}  // namespace stagecraft
