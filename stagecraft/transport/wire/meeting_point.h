#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/meeting_result.h"
#include "stagecraft/transport/core/wait_queue.h"
#include "stagecraft/transport/core/world_state.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/meetings.h"

namespace stagecraft::detail {

/// This rank's part in collectives, which fail when the world is aborted, and in recoveries, which
/// do not. Rank 0 coordinates them.
///
///   rank r -- kCome --> rank 0        when all have come: rank 0 -- kMet --> every rank
///   rank r -- kWithdraw --> rank 0    at its deadline: rank 0 -- kWithdrawn --> rank r,
///                                     unless kMet was sent before
///
/// Therefore a collective takes place on all ranks or on none.
class MeetingPoint {
 public:
  struct Met {
    uint64_t number = 0;             ///< number of the collective, the same on all ranks
    std::vector<std::string> calls;  ///< by rank
    std::vector<std::string> bytes;  ///< by rank
  };
  struct Result : MeetingResult {
    std::shared_ptr<const Met> met = nullptr;  ///< null unless met
  };
  /// Sends a frame to a peer, unless the connection is lost.
  using Send = std::function<void(Rank to, const FrameHead& head, std::string_view body)>;

  /// `on_recovered` is called when all ranks have met to recover, before this rank continues.
  MeetingPoint(Rank rank, const WorldState& world, Send send, std::function<void()> on_recovered);

  /// Takes part, on the rank's own thread. `epoch`: the number of recoveries.
  Result meet(bool is_recovery, uint64_t epoch, const std::string& call, const std::string& bytes,
              Deadline deadline);
  /// Handles a frame of kind kCome, kWithdraw, kMet or kWithdrawn. MetadataError for an invalid
  /// one.
  void on_frame(Rank from, const FrameHead& head, std::string_view body);
  /// Wakes `meet` after the world was aborted or a rank left.
  void wake();

 private:
  void tell_keeper(const FrameHead& head, std::string_view body);
  void answer(Rank to, const FrameHead& head, std::string_view body);
  /// Called on rank 0.
  void on_come(Rank from, const FrameHead& head, std::string_view body);
  void on_withdraw(Rank from, const FrameHead& head);
  /// Called on every rank.
  void on_answer(const FrameHead& head, std::string_view body);

  const Rank rank_;
  const WorldState& world_;
  const Send send_;
  const std::function<void()> on_recovered_;

  WaitQueue waiters_;
  uint64_t attempt_ = 0;
  std::shared_ptr<const Met> met_;  ///< result of this attempt
  std::optional<std::vector<Rank>> missing_;

  std::mutex keeper_;  ///< protects what follows, which rank 0 uses
  uint64_t epoch_ = 0;
  uint64_t next_number_ = 0;
  Meetings collectives_;
  Meetings recoveries_;
};

}  // namespace stagecraft::detail
