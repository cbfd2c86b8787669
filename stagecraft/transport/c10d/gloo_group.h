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

/// A group of gloo for CPU tensors: connects every rank with every other through the store. The
/// others reach this rank at `address`, an address or a host name of this machine (ArgumentError).
/// Throws what c10d throws, after at most `timeout`.
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  Rank rank, int32_t num_ranks,
                                                  const std::string& address,
                                                  std::chrono::milliseconds timeout);

}  // namespace stagecraft::detail
