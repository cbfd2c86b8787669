#include "stagecraft/schedule/action.h"

#include <unordered_set>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/slot.h"
#include "stagecraft/schedule/text.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(Action, IsAValueOfEightBytes) {
  const Action a(StageId(2), ActionType::kForward, MicrobatchId(7));
  EXPECT_EQ(a.stage(), StageId(2));
  EXPECT_EQ(a.type(), ActionType::kForward);
  EXPECT_EQ(a.microbatch(), MicrobatchId(7));
  EXPECT_EQ(a, Action(StageId(2), ActionType::kForward, MicrobatchId(7)));
  EXPECT_NE(a, a.with_type(ActionType::kBackward));
  EXPECT_EQ(to_string(a.with_type(ActionType::kSendBackward)), "2SEND_B7");
  EXPECT_EQ(sizeof(Action), 8U);
}

TEST(Action, HashesApartFromItsNeighbours) {
  std::unordered_set<Action> all;
  for (int32_t s = 0; s < 20; ++s) {
    for (int32_t m = 0; m < 20; ++m) {
      for (std::size_t type = 0; type < kMicrobatchTypes; ++type) {
        all.emplace(StageId(s), static_cast<ActionType>(type), MicrobatchId(m));
      }
    }
  }
  EXPECT_EQ(all.size(), 20U * 20U * 10U);
}

TEST(Action, HoldsTheLargestIndices) {
  const Action a(StageId(Action::kMaxStage), ActionType::kRecvBackward,
                 MicrobatchId(Action::kMaxMicrobatch));
  EXPECT_EQ(parse_action(to_string(a)), a);
}

TEST(Action, RefusesWhatNoActionIs) {
  EXPECT_ERROR(Action(StageId(-1), ActionType::kForward, MicrobatchId(0)), ArgumentError,
               "a stage is a number from 0 to 1048575, got -1 for F");
  EXPECT_ERROR(Action(StageId(1 << 20), ActionType::kUnshard), ArgumentError, "got 1048576");
  EXPECT_ERROR(Action(StageId(0), ActionType::kForward, MicrobatchId(-1)), ArgumentError,
               "F of stage 0 needs a microbatch");
  EXPECT_ERROR(Action(StageId(3), ActionType::kForward), ArgumentError, "needs a microbatch");
  EXPECT_ERROR(Action(StageId(3), ActionType::kReshard, MicrobatchId(0)), ArgumentError,
               "RESHARD has no microbatch");
}

TEST(Action, KnowsTheWaitOfASend) {
  EXPECT_EQ(to_string(Action(StageId(0), ActionType::kWaitSendForward, MicrobatchId(3))),
            "0WAIT_SEND_F3");
  EXPECT_EQ(to_string(Action(StageId(1), ActionType::kWaitReduceGrad)), "1WAIT_REDUCE_GRAD");
  for (const ActionType send : {ActionType::kSendForward, ActionType::kSendBackward}) {
    EXPECT_EQ(send_of(wait_of(send)), send);
    EXPECT_EQ(to_string(wait_of(send)), "WAIT_" + std::string(to_string(send)));
    EXPECT_TRUE(is_send_wait(wait_of(send)));
    EXPECT_FALSE(is_transfer(wait_of(send)));
  }
}

// An observer sees actions of every type, and may ask all of them.
TEST(Action, HasNoStageOrMicrobatchOfAnotherType) {
  EXPECT_EQ(Action().stage(), StageId(-1));
  EXPECT_EQ(Action().microbatch(), MicrobatchId(-1));
  EXPECT_EQ(Action::overlap(2).stage(), StageId(-1));
  EXPECT_EQ(Action::overlap(2).microbatch(), MicrobatchId(-1));
  EXPECT_EQ(Action(StageId(1), ActionType::kUnshard).microbatch(), MicrobatchId(-1));
  EXPECT_EQ(Action(StageId(1), ActionType::kUnshard).stage(), StageId(1));
}

TEST(Slot, TakesAnOverlapAndItsPartsTogether) {
  const ActionList list = parse_actions("0F0,,(0F1;1B0)OVERLAP_F_B,1UNSHARD");
  EXPECT_EQ(list.size(), 6U);
  std::vector<std::string> texts;
  std::vector<int64_t> positions;
  for (const Slot& slot : SlotRange(list)) {
    texts.push_back(to_string(slot));
    positions.push_back(slot.position());
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"0F0", "", "(0F1;1B0)OVERLAP_F_B", "1UNSHARD"}));
  EXPECT_EQ(positions, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(slot_at(list, 4).position(), 2);
  EXPECT_EQ(slot_at(list, 4).parts().size(), 2U);
  EXPECT_EQ(slot_at(list, 5).position(), 3);
}

}  // namespace
}  // namespace stagecraft
