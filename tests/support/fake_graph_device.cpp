#include "tests/support/fake_graph_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/stage/random_generators.h"
#include "tests/support/fake_device_probe.h"

namespace stagecraft {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

std::atomic<int64_t> graphs = 0;

std::string& refused() {
  static std::string name = "aten::_local_scalar_dense";
  return name;
}

struct Call {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<c10::IValue> results;
  bool has_grad = false;
};

template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) visit_tensors(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) visit_tensors(element, visit);
  }
}

// The recording of one capture.
struct Tape {
  std::vector<Call> calls;
  std::unordered_map<c10::StorageImpl*, c10::Storage> made;  // by recorded operators
  std::unordered_map<c10::StorageImpl*, std::pair<c10::Storage, std::vector<char>>> changed;
  std::vector<at::Generator> generators;

  static std::size_t bytes(const c10::Storage& storage) { return storage.nbytes(); }

  void keep_before_change(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    c10::StorageImpl* const key = storage.unsafeGetStorageImpl();
    if (made.contains(key) || changed.contains(key)) return;
    const auto* begin = static_cast<const char*>(storage.data());
    changed.emplace(key, std::pair(storage, std::vector<char>(begin, begin + bytes(storage))));
  }

  void note_made(const at::Tensor& tensor, bool is_argument) {
    if (is_argument || !tensor.has_storage()) return;
    made.emplace(tensor.storage().unsafeGetStorageImpl(), tensor.storage());
  }

  // As if nothing had been executed.
  void undo() {
    for (auto& [key, saved] : changed) {
      std::memcpy(saved.first.mutable_data(), saved.second.data(), saved.second.size());
    }
    for (auto& [key, storage] : made) {
      if (storage.mutable_data() != nullptr) {
        std::memset(storage.mutable_data(), 0xff, bytes(storage));
      }
    }
    changed.clear();
  }
};

thread_local Tape* tape = nullptr;

// Operators that only call others, which are recorded instead: composite ones, and those that
// autocast calls again with other arguments.
bool calls_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
         (at::autocast::is_autocast_enabled(c10::kCPU) &&
          op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU));
}

// As the random scope would, which comes after this key.
void fill_generator(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = *(stack.end() - static_cast<std::ptrdiff_t>(arguments.size() - i));
    if (!value.isNone() || arguments[i].name() != "generator") continue;
    if (auto own = detail::find_scope_generator(c10::kCPU)) value = *std::move(own);
  }
}

void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (tape == nullptr || calls_others(op)) {
    op.redispatchBoxed(keys & below, stack);
    return;
  }
  const std::string& name = op.schema().name();
  if (name == refused())
    throw std::runtime_error("operation not permitted when stream is capturing");
  fill_generator(op, *stack);
  const c10::impl::ExcludeDispatchKeyGuard off(kKey);
  const auto& schema = op.schema();
  const auto count = static_cast<std::ptrdiff_t>(schema.arguments().size());
  Call call{op, {stack->end() - count, stack->end()}, {}, c10::GradMode::is_enabled()};
  std::vector<c10::StorageImpl*> given;
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    visit_tensors(call.arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      given.push_back(tensor.storage().unsafeGetStorageImpl());
      if (alias != nullptr && alias->isWrite()) tape->keep_before_change(tensor);
    });
  }
  op.redispatchBoxed(keys & below, stack);
  const auto results = static_cast<std::ptrdiff_t>(schema.returns().size());
  call.results.assign(stack->end() - results, stack->end());
  for (const c10::IValue& result : call.results) {
    visit_tensors(result, [&](const at::Tensor& tensor) {
      const bool is_given =
          tensor.has_storage() && std::find(given.begin(), given.end(),
                                            tensor.storage().unsafeGetStorageImpl()) != given.end();
      tape->note_made(tensor, is_given);
    });
  }
  tape->calls.push_back(std::move(call));
}

// For the life of the process: a key has one fallback.
void register_fallback() {
  static const auto* const handle =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kKey, c10::KernelFunction::makeFromBoxedFunction<&record>(), "fake graph device"));
  static_cast<void>(handle);
}

class FakeGraph final : public detail::DeviceGraph {
 public:
  explicit FakeGraph(Tape recorded) : tape_(std::move(recorded)) { ++graphs; }
  ~FakeGraph() override { --graphs; }

  void replay(std::span<const uint64_t> seeds) override {
    if (seeds.size() != tape_.generators.size()) throw std::logic_error("wrong number of seeds");
    for (std::size_t i = 0; i < seeds.size(); ++i) tape_.generators[i].set_current_seed(seeds[i]);
    // A device changes memory, and torch does not count it as a change in place.
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const Call& call : tape_.calls) {
      const c10::AutoGradMode mode(call.has_grad);
      torch::jit::Stack stack(call.arguments.begin(), call.arguments.end());
      call.op.callBoxed(stack);
      for (std::size_t i = 0; i < call.results.size(); ++i) put(stack[i], call.results[i]);
    }
  }

 private:
  static void put(const c10::IValue& from, const c10::IValue& to) {
    std::vector<at::Tensor> sources;
    visit_tensors(from, [&](const at::Tensor& tensor) { sources.push_back(tensor); });
    std::size_t next = 0;
    visit_tensors(to, [&](const at::Tensor& tensor) {
      const at::Tensor& source = sources.at(next++);
      if (!tensor.has_storage() || source.data_ptr() == tensor.data_ptr()) return;
      tensor.copy_(source);
    });
  }

  Tape tape_;
};

class FakeScope final : public detail::StreamScope {};

class FakeGraphDevice final : public detail::GraphDevice {
 public:
  c10::Device device() const override { return c10::kCPU; }
  std::unique_ptr<detail::StreamScope> enter() override { return std::make_unique<FakeScope>(); }

  void release_unused() override { throw_fake_failure(); }

  void begin_capture() override {
    tape_ = {};
    tape = &tape_;
    c10::impl::tls_set_dispatch_key_included(kKey, true);
  }

  std::unique_ptr<detail::DeviceGraph> end_capture() override {
    stop();
    return std::make_unique<FakeGraph>(std::exchange(tape_, {}));
  }

  void cancel_capture() noexcept override {
    if (tape != nullptr) stop();
    tape_ = {};
  }

  void open_sequence() override { tape_.generators.push_back(at::detail::createCPUGenerator()); }
  at::Generator continue_sequence(std::size_t sequence) override {
    return tape_.generators.at(sequence);
  }
  std::unique_ptr<detail::DeviceMarks> make_marks(std::size_t /*limit*/) override {
    return make_fake_graph_marks();
  }

 private:
  void stop() {
    c10::impl::tls_set_dispatch_key_included(kKey, false);
    tape = nullptr;
    tape_.undo();
  }

  Tape tape_;
};

}  // namespace

FakeGraphDevices::FakeGraphDevices() {
  register_fallback();
  detail::set_graph_device_maker([](c10::Device device) -> std::unique_ptr<detail::GraphDevice> {
    return device.is_cpu() ? std::make_unique<FakeGraphDevice>() : nullptr;
  });
}

FakeGraphDevices::~FakeGraphDevices() {
  detail::set_graph_device_maker(nullptr);
  refuse("aten::_local_scalar_dense");
}

void FakeGraphDevices::refuse(const std::string& name) {
  refused() = name;
}

int64_t FakeGraphDevices::num_graphs() {
  return graphs.load();
}

}  // namespace stagecraft
