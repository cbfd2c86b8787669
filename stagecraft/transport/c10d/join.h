#pragma once

#include <memory>

#include "stagecraft/transport/c10d/process_world.h"
#include "stagecraft/transport/wire/engine.h"

namespace stagecraft::detail {

/// Meets the other ranks at the store, sees that all are of the job and of one kind, and connects
/// with them. The store, where rank 0 keeps it, lives as long as the engine.
///
///   rank 0 puts a salt there, signed with the token, so that others know whether they have it
///   every rank puts its facts there, signed with the token and the salt, and reads all others'
///   the ranks connect
///   every rank says that it is done; who keeps the store waits for that
std::unique_ptr<Engine> join(const ProcessWorldOptions& options);

}  // namespace stagecraft::detail
