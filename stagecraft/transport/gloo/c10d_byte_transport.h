#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/wire/byte_transport.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace stagecraft::detail {

/// A byte transport over a gloo backend. Nothing else may send or receive in the group.
std::unique_ptr<ByteTransport> make_c10d_byte_transport(
    const c10::intrusive_ptr<c10d::Backend>& group);
/// A byte transport over the group's backend for the CPU (see join_gloo.h). ArgumentError without
/// one.
std::unique_ptr<ByteTransport> make_c10d_byte_transport(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace stagecraft::detail
