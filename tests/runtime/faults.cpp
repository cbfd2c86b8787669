#include "tests/runtime/faults.h"

#include <filesystem>
#include <iterator>
#include <utility>

#include "stagecraft/stage/stage_context.h"
#include "tests/runtime/harness.h"

namespace stagecraft {

std::string message_of(const std::exception_ptr& thrown) {
  if (!thrown) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return {};
  }
}

std::exception_ptr thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::optional<StageError> find_stage_error(const std::exception_ptr& thrown) {
  if (!thrown) return std::nullopt;
  try {
    std::rethrow_exception(thrown);
  } catch (const StageError& error) {
    return error;
  } catch (const PeerError& error) {
    return find_stage_error(error.cause());
  } catch (...) {
    return std::nullopt;
  }
}

void Probe::set(Function function) {
  const std::lock_guard lock(mutex_);
  function_ = std::move(function);
}

void Probe::call(StageId stage, MicrobatchId microbatch, at::Tensor& output) {
  Function function;
  {
    const std::lock_guard lock(mutex_);
    made_.push_back(output.storage().getWeakStorageImpl());
    function = function_;
  }
  if (function) function(stage, microbatch, output);
}

std::size_t Probe::take_num_alive() {
  const std::lock_guard lock(mutex_);
  std::size_t alive = 0;
  for (const auto& storage : std::exchange(made_, {})) alive += storage.expired() ? 0 : 1;
  return alive;
}

void add_probe(TestModel& model, const std::shared_ptr<Probe>& probe) {
  for (StageBody& body : model.bodies) {
    body.forward = [inner = body.forward, probe](const Args& args, const Kwargs& kwargs) {
      at::Tensor output = inner(args, kwargs).toTensor();
      const StageContext* context = current_stage();
      probe->call(context->stage, context->microbatch, output);
      return c10::IValue(output);
    };
  }
}

TestModel probed_chain(int32_t stages, const std::shared_ptr<Probe>& probe, uint64_t seed) {
  TestModel model = chain_model(stages, 5, seed);
  add_probe(model, probe);
  return model;
}

std::size_t num_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

void FaultyTransport::enter(Call call) {
  ++counts_[static_cast<std::size_t>(call)];
  if (failing_ != call || countdown_-- > 0) return;
  failing_.reset();
  how_();
}

PendingPtr FaultyTransport::post_send(Rank to, const TransferId& id, c10::IValue value) {
  enter(Call::kPostSend);
  return inner_.post_send(to, id, std::move(value));
}

PendingPtr FaultyTransport::post_receive(Rank from, const TransferId& id) {
  enter(Call::kPostReceive);
  PendingPtr pending = inner_.post_receive(from, id);
  if (alter_) receives_.emplace_back(pending, id);
  return pending;
}

void FaultyTransport::wait_send(const PendingPtr& send, Deadline deadline) {
  enter(Call::kWaitSend);
  inner_.wait_send(send, deadline);
}

Received FaultyTransport::wait_receive(const PendingPtr& receive, Deadline deadline) {
  enter(Call::kWaitReceive);
  Received received = inner_.wait_receive(receive, deadline);
  for (const auto& [pending, id] : receives_) {
    if (alter_ && pending == receive) alter_(id, received.value);
  }
  return received;
}

c10::IValue FaultyTransport::broadcast(c10::IValue value, Rank root, Deadline deadline) {
  return inner_.broadcast(std::move(value), root, deadline);
}

at::Tensor FaultyTransport::all_reduce(const at::Tensor& tensor, Deadline deadline) {
  return inner_.all_reduce(tensor, deadline);
}

std::vector<c10::IValue> FaultyTransport::all_gather(c10::IValue value, Deadline deadline) {
  enter(Call::kAllGather);
  return inner_.all_gather(std::move(value), deadline);
}

void FaultyTransport::abort(AbortReason reason) {
  inner_.abort(std::move(reason));
}

}  // namespace stagecraft
