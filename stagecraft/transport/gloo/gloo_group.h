#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/base/index.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace stagecraft::detail {

/// A gloo group for CPU tensors, in which every rank is connected to every other, through the
/// store. Peers reach this rank at `address`, an address or host name of this machine
/// (ArgumentError otherwise). If it is empty, they reach it at the address that c10d's own gloo
/// groups use. Throws what c10d throws, after at most `timeout`.
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  Rank rank, int32_t num_ranks,
                                                  const std::string& address,
                                                  std::chrono::milliseconds timeout);

}  // namespace stagecraft::detail
