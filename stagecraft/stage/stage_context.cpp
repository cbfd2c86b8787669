#include "stagecraft/stage/stage_context.h"

#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {
thread_local StageContext* current = nullptr;
}  // namespace

StageContext* current_stage() {
  return current;
}

void add_loss(const at::Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    throw ArgumentError("add_loss: expected a tensor with one element, got " + describe(loss));
  }
  if (current != nullptr) current->losses.push_back(loss);
}

namespace detail {

StageContextGuard::StageContextGuard(StageContext& context) : previous_(current) {
  current = &context;
}

StageContextGuard::~StageContextGuard() {
  current = previous_;
}

}  // namespace detail
}  // namespace stagecraft
