#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace stagecraft {

/// Joins a world whose ranks are processes, on one machine or several, connected by gloo. Tensors
/// of devices other than the CPU are copied through pinned memory.
///
///   // torchrun --no-python ./program
///   auto transport = join_gloo(JoinOptions::from_environment());
///   Runner runner(*transport, ...);
///
/// A process that ends, is killed or stops aborts the world: the other ranks get PeerError, which
/// names its rank. Afterwards the same process can join a new world.
///
/// TimeoutError names the ranks that did not join in time. ArgumentError for a process that lacks
/// the job's token, and for a second process with the same rank. MetadataError on every rank if the
/// ranks differ in what they must agree on (JoinOptions::fingerprint).
std::unique_ptr<Transport> join_gloo(const JoinOptions& options);

/// The same at a store that the program has, such as that of its own c10d group. Stagecraft creates
/// a separate gloo group there. The options of c10d's store (host, port, listen, ...) are not used.
/// A process that can reach the store can join, so no token is needed unless one is given. Without
/// `address`, peers reach this rank at the address that c10d's gloo groups use (of
/// GLOO_SOCKET_IFNAME, otherwise of the machine's name). Worlds at one store need different jobs.
std::unique_ptr<Transport> join_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                     const JoinOptions& options);

/// Joins a world over an existing c10d group that has a backend for the CPU (otherwise
/// ArgumentError). Nothing else may send or receive in the group. The caller handles SIGPIPE, which
/// gloo raises when a peer dies.
///
/// A backend other than gloo must support tags, accept a message that is shorter than the posted
/// receive, and report completion by Work::isCompleted. Unless the backend reports the end of a
/// process, only the missing heartbeat detects it.
std::unique_ptr<Transport> join_gloo(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                     const ProcessTransportOptions& options = {});

}  // namespace stagecraft
