#include "stagecraft/stage/random_operators.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/stage/random_generators.h"

namespace stagecraft::detail {
namespace {

// A spare key: torch registers no kernels for it (pass_others checks that). It is handled before
// autograd, which then records the operator with its generator.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

/// Operators whose CUDA kernels draw from the device's default generator and take no other.
constexpr std::array<std::string_view, 9> kWithoutGenerator = {
    "aten::native_dropout",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
    "aten::_triton_scaled_dot_attention",
};

/// The arguments that decide whether and where an operator draws, by position in the schema.
struct Arguments {
  explicit Arguments(const c10::FunctionSchema& schema) : count(schema.arguments().size()) {
    static const c10::TypePtr maybe_generator =
        c10::OptionalType::create(c10::GeneratorType::get());
    for (std::size_t i = 0; i < count; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (*argument.type() == *maybe_generator) generator = i;
      if (argument.type()->isSubtypeOf(*c10::TensorType::get())) tensors.push_back(i);
      if (argument.name() == "device") device = i;
      if (argument.name() == "dropout_p") dropout = i;
    }
  }

  c10::IValue& at(torch::jit::Stack& stack, std::size_t i) const {
    return *(stack.end() - static_cast<std::ptrdiff_t>(count - i));
  }

  /// The device of the result: the one asked for, otherwise that of the tensors. Numbers on the CPU
  /// may be mixed with tensors of the device.
  c10::Device place(torch::jit::Stack& stack) const {
    if (device && at(stack, *device).isDevice()) return at(stack, *device).toDevice();
    for (const std::size_t i : tensors) {
      const at::Tensor& tensor = at(stack, i).toTensor();
      if (tensor.defined() && !(tensor.is_cpu() && tensor.dim() == 0)) return tensor.device();
    }
    return c10::kCPU;
  }

  std::size_t count;
  std::vector<std::size_t> tensors;
  std::optional<std::size_t> generator;
  std::optional<std::size_t> device;
  std::optional<std::size_t> dropout;
};

class Kernel : public c10::OperatorKernel {
 protected:
  Kernel(c10::DispatchKey key, Arguments arguments)
      : below_(c10::DispatchKeySet::FULL_AFTER, key), arguments_(std::move(arguments)) {}

  void pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               torch::jit::Stack* stack) const {
    op.redispatchBoxed(keys & below_, stack);
  }

  const c10::DispatchKeySet below_;
  const Arguments arguments_;
};

/// For operators with an optional generator.
class FillGenerator final : public Kernel {
 public:
  FillGenerator(c10::DispatchKey key, Arguments arguments) : Kernel(key, std::move(arguments)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    c10::IValue& generator = arguments_.at(*stack, *arguments_.generator);
    if (generator.isNone()) {
      // A generator that the program passes itself is left alone.
      if (auto own = find_scope_generator(arguments_.place(*stack))) generator = *std::move(own);
    }
    pass_on(op, keys, stack);
  }
};

/// Puts a scope's generator in the place of a device's default one. One thread at a time.
class DefaultExchange {
 public:
  explicit DefaultExchange(const at::Generator& own)
      : turn_(turns().at(static_cast<std::size_t>(own.device().index()))),
        shared_(at::globalContext().defaultGenerator(own.device())) {
    const std::lock_guard<std::mutex> lock(shared_.mutex());
    // The graph-safe calls exchange the state by reference: the draws continue the scope's own
    // generator, and nothing is copied.
    before_ = shared_.graphsafe_get_state();
    shared_.graphsafe_set_state(own);
  }

  ~DefaultExchange() {
    const std::lock_guard<std::mutex> lock(shared_.mutex());
    shared_.graphsafe_set_state(before_);
  }

  DefaultExchange(const DefaultExchange&) = delete;
  DefaultExchange& operator=(const DefaultExchange&) = delete;

 private:
  static std::array<std::mutex, 128>& turns() {
    static std::array<std::mutex, 128> one_a_device;
    return one_a_device;
  }

  const std::lock_guard<std::mutex> turn_;
  at::Generator shared_;
  at::Generator before_;
};

/// For operators that draw from the default generator of a CUDA device.
class ExchangeDefault final : public Kernel {
 public:
  ExchangeDefault(c10::DispatchKey key, Arguments arguments) : Kernel(key, std::move(arguments)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const {
    // These operators call each other. Only the outermost one exchanges the state.
    static thread_local bool exchanged = false;
    const c10::Device device = arguments_.place(*stack);
    const bool draws =
        !arguments_.dropout || arguments_.at(*stack, *arguments_.dropout).toDouble() > 0;
    const auto own =
        device.is_cuda() && draws && !exchanged ? find_scope_generator(device) : std::nullopt;
    if (!own) {
      pass_on(op, keys, stack);
      return;
    }
    const DefaultExchange exchange(*own);
    struct Mark {
      Mark() { exchanged = true; }
      ~Mark() { exchanged = false; }
    } const mark;
    pass_on(op, keys, stack);
  }
};

std::optional<c10::KernelFunction> make_kernel(c10::DispatchKey key,
                                               const c10::FunctionSchema& schema) {
  Arguments arguments(schema);
  if (arguments.generator) {
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<FillGenerator>(key, std::move(arguments)));
  }
  if (std::find(kWithoutGenerator.begin(), kWithoutGenerator.end(), schema.name()) !=
      kWithoutGenerator.end()) {
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<ExchangeDefault>(key, std::move(arguments)));
  }
  return std::nullopt;
}

c10::RegistrationHandleRAII pass_others(c10::DispatchKey key) {
  auto& dispatcher = c10::Dispatcher::singleton();
  require<Error>(!dispatcher.hasBackendFallbackForDispatchKey(key),
                 "random scopes need the dispatch key {} for themselves, but a different library, "
                 "or a second copy of this one, has registered a fallback for it in this process",
                 c10::toString(key));
  const auto taken = dispatcher.getAllOpNamesForDispatchKey(key);
  require<Error>(taken.empty(),
                 "random scopes need the dispatch key {} for themselves, but {} operators have "
                 "a kernel for it, {} among them",
                 c10::toString(key), taken.size(),
                 taken.empty() ? std::string() : c10::toString(taken.front()));
  // Operators that draw nothing pass the key without a call.
  return dispatcher.registerFallback(key, c10::KernelFunction::makeFallthrough(),
                                     "stagecraft random scope");
}

/// Registered once and never removed: operators may be called as long as the process lives.
struct Taught {
  Taught() {
    try {
      operators.emplace(kKey);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }

  std::optional<RandomOperators> operators;
  std::string failure;
};

const Taught& taught() {
  static const Taught* const once = new Taught;
  return *once;
}

// Before main, when no other thread calls operators.
[[maybe_unused]] const Taught& kBeforeMain = taught();

}  // namespace

RandomOperators::RandomOperators(c10::DispatchKey key) : others_(pass_others(key)) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten") continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    auto kernel = make_kernel(key, op->schema());
    if (!kernel) continue;
    kernels_.push_back(dispatcher.registerImpl(name, key, *std::move(kernel), std::nullopt, nullptr,
                                               "stagecraft random scope"));
  }
}

c10::DispatchKey random_dispatch_key() {
  require<Error>(taught().operators.has_value(), "{}", taught().failure);
  return kKey;
}

}  // namespace stagecraft::detail
