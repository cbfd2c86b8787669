#include "stagecraft/base/wait_tick.h"

#include <utility>

#include "stagecraft/base/assert.h"

namespace stagecraft {

thread_local WaitTick* WaitTick::current_ = nullptr;

WaitTick::WaitTick(std::function<void()> on_tick)
    : on_tick_(std::move(on_tick)),
      last_(std::chrono::steady_clock::now()),
      outer_(std::exchange(current_, this)) {}

WaitTick::~WaitTick() {
  current_ = outer_;
}

void WaitTick::call() {
  SC_ASSERT(is_set());
  current_->last_ = std::chrono::steady_clock::now();
  current_->on_tick_();
}

void WaitTick::look() {
  if (std::chrono::steady_clock::now() - last_ >= kPeriod) call();
}

}  // namespace stagecraft
