#pragma once

#include <string>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/core/transfer_state.h"
#include "stagecraft/transport/core/world_state.h"

/// What an exchange says when something is wrong; and the checks that need no payload.
namespace stagecraft::detail {

/// "values of stage 0 for stage 1, microbatch 3, step 7, from rank 0".
std::string name_receive(const TransferState& transfer);
/// "rank 1 to post the receive of values of stage 0 for stage 1, microbatch 3, step 7".
std::string name_send(const TransferState& transfer);

[[noreturn]] void throw_sent_twice(const TransferState& transfer);
[[noreturn]] void throw_posted_twice(const TransferState& transfer);
[[noreturn]] void throw_timeout(Rank rank, Deadline::Clock::duration waited,
                                const std::string& what);
/// For a wait that cannot end well any more because `peer` had left before it began.
[[noreturn]] void throw_has_left(Rank peer, Rank rank, const std::string& what);
/// For one that was under way then.
AbortReason reason_left(Rank peer, Rank rank, const std::string& what);

/// The transfer that `pending` is the receive of, posted by `rank` in this world and not taken yet;
/// otherwise ArgumentError.
TransferState& checked_receive(const WorldState& world, Rank rank, const PendingPtr& pending);
/// The transfer that `pending` is the send of; null where it was done as soon as it was posted.
TransferState* checked_send(const WorldState& world, Rank rank, const PendingPtr& pending);

}  // namespace stagecraft::detail
