#pragma once

#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/thread_name.h"

namespace stagecraft::detail {

/// Starts `call` on a detached thread with that name (thread_name.h) and returns its future result.
/// For calls of other libraries that can block for ever: the caller may stop waiting, and the
/// thread is abandoned. Therefore `call` must own everything that it touches.
template <typename Call>
auto start_detached(std::string name, Call call) {
  using Result = std::invoke_result_t<Call&>;
  std::promise<Result> promise;
  auto result = promise.get_future();
  std::thread([name = std::move(name), call = std::move(call),
               promise = std::move(promise)]() mutable {
    name_thread(name);
    try {
      if constexpr (std::is_void_v<Result>) {
        call();
        promise.set_value();
      } else {
        promise.set_value(call());
      }
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  return result;
}

/// Starts `call` like start_detached, and waits for it. Returns its result, or nothing if the
/// deadline passes first. Rethrows an exception of `call`.
template <typename Call>
auto run_detached(std::string name, Call call, Deadline deadline)
    -> std::optional<std::invoke_result_t<Call&>> {
  auto result = start_detached(std::move(name), std::move(call));
  if (result.wait_until(deadline.at()) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace stagecraft::detail
