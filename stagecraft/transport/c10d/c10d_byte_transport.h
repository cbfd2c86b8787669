#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/wire/byte_transport.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace stagecraft::detail {

/// An engine over a backend of gloo's. Nobody else may send or receive in the group.
std::unique_ptr<ByteTransport> make_c10d_byte_transport(
    const c10::intrusive_ptr<c10d::Backend>& group);
/// Over that which a group has for the CPU, whichever it is (see join_gloo.h); ArgumentError if it
/// has none.
std::unique_ptr<ByteTransport> make_c10d_byte_transport(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace stagecraft::detail
