#pragma once

#include <string>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/core/transfer_state.h"
#include "stagecraft/transport/core/world_state.h"

/// The error messages of an exchange, and the checks that need no payload.
namespace stagecraft::detail {

/// "values of stage 0 for stage 1, microbatch 3, step 7, from rank 0".
std::string name_receive(const TransferState& transfer);
/// "rank 1 to post the receive of values of stage 0 for stage 1, microbatch 3, step 7".
std::string name_send(const TransferState& transfer);

[[noreturn]] void throw_sent_twice(const TransferState& transfer);
[[noreturn]] void throw_posted_twice(const TransferState& transfer);
[[noreturn]] void throw_timeout(Rank rank, Deadline::Clock::duration waited,
                                const std::string& what);
/// For a wait that began after `peer` had left.
[[noreturn]] void throw_has_left(Rank peer, Rank rank, const std::string& what);
/// For a wait that had begun before `peer` left.
AbortReason reason_left(Rank peer, Rank rank, const std::string& what);

/// The transfer of a receive, which `rank` has posted in this world and not waited for yet;
/// otherwise ArgumentError.
TransferState& checked_receive(const WorldState& world, Rank rank, const PendingPtr& pending);
/// The transfer of a send; null if it was done when it was posted. ArgumentError for a send of a
/// different rank or world.
TransferState* checked_send(const WorldState& world, Rank rank, const PendingPtr& pending);

}  // namespace stagecraft::detail
