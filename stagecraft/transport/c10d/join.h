#pragma once

#include <memory>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/wire/byte_transport.h"

namespace stagecraft::detail {

/// Joins the other ranks at c10d's store, compares facts with them (wire/handshake.h) and connects
/// to them through gloo. A store that rank 0 keeps ends when all ranks have read it.
///
///   rank 0 writes a salt, signed with the token, so that other ranks know whether their token is
///   right every rank writes its facts, signed with token and salt, and reads those of all ranks
///   the ranks connect
///   every rank writes that it is done; the rank that keeps the store waits for that
std::unique_ptr<ByteTransport> connect_gloo(const JoinOptions& options);

}  // namespace stagecraft::detail
