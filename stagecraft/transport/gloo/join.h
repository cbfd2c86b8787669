#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/wire/byte_transport.h"

namespace c10d {
class Store;
}

namespace stagecraft::detail {

/// Joins the other ranks at c10d's store, compares fingerprints with them (wire/handshake.h) and
/// connects to them through gloo. A store that rank 0 keeps ends when all ranks have read it.
///
///   1. Rank 0 writes a salt, signed with the token: ranks learn whether their token is right.
///   2. Every rank writes its fingerprint, signed with token and salt, and reads those of all.
///   3. The ranks connect.
///   4. Every rank writes that it is done. The rank that keeps the store waits for that.
std::unique_ptr<ByteTransport> connect_gloo(const JoinOptions& options);
/// The same at an existing store (join_gloo.h).
std::unique_ptr<ByteTransport> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const JoinOptions& options);

}  // namespace stagecraft::detail
