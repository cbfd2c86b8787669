#include "stagecraft/runtime/launch/last_operator.h"

#include <memory>
#include <mutex>

#include <ATen/record_function.h>

namespace stagecraft::detail {

namespace {

struct Noted {
  std::mutex mutex;
  std::string name;
};

Noted& noted() {
  static Noted* const last = new Noted;
  return *last;
}

std::unique_ptr<at::ObserverContext> note_operator(const at::RecordFunction& function) {
  Noted& last = noted();
  const std::lock_guard<std::mutex> lock(last.mutex);
  last.name = function.name();
  return nullptr;
}

}  // namespace

LastOperator::LastOperator() {
  {
    Noted& last = noted();
    const std::lock_guard<std::mutex> lock(last.mutex);
    last.name.clear();
  }
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&note_operator).scopes({at::RecordScope::FUNCTION}));
}

LastOperator::~LastOperator() {
  at::removeCallback(callback_);
}

std::string LastOperator::name() {
  Noted& last = noted();
  const std::lock_guard<std::mutex> lock(last.mutex);
  return last.name;
}

}  // namespace stagecraft::detail
