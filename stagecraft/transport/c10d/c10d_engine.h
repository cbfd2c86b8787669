#pragma once

#include <memory>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/wire/engine.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace stagecraft::detail {

/// An engine over a group of gloo's (ArgumentError for a group of another backend). Nobody else may
/// send or receive in the group.
std::unique_ptr<Engine> make_c10d_engine(const c10::intrusive_ptr<c10d::Backend>& group);
std::unique_ptr<Engine> make_c10d_engine(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace stagecraft::detail
