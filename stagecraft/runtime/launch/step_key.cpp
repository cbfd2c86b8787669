#include "stagecraft/runtime/launch/step_key.h"

#include <bit>
#include <span>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include "stagecraft/base/checksum.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft::detail {

/// Appends values to a key. The first value that cannot be captured sets the reason.
class StepKeyBuilder {
 public:
  void add(int64_t word) { key_.words_.push_back(word); }
  void add(double number) { add(std::bit_cast<int64_t>(number)); }
  void add_address(const void* address) {
    add(static_cast<int64_t>(std::bit_cast<intptr_t>(address)));
  }

  void add_value(const c10::IValue& value) {
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isNone()) {
      add(kNone);
    } else if (value.isBool()) {
      add(kBool);
      add(int64_t{value.toBool()});
    } else if (value.isInt()) {
      add(kInt);
      add(value.toInt());
    } else if (value.isDouble()) {
      add(kDouble);
      add(value.toDouble());
    } else if (value.isString()) {
      add_text(value.toStringRef());
    } else if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      add(kTuple);
      add(static_cast<int64_t>(elements.size()));
      for (const c10::IValue& element : elements) add_value(element);
    } else if (value.isList()) {
      const auto list = value.toList();
      add(kList);
      add(static_cast<int64_t>(list.size()));
      for (std::size_t i = 0; i < list.size(); ++i) add_value(list.get(i));
    } else if (value.isGenericDict()) {
      const auto dict = value.toGenericDict();
      add(kDict);
      add(static_cast<int64_t>(dict.size()));
      for (const auto& entry : dict) {
        add_value(entry.key());
        add_value(entry.value());
      }
    } else if (value.isCapsule()) {
      add(kOpaque);
      add_address(value.toCapsule().get());
      key_.held_.push_back(value);
    } else {
      refuse("an argument is " + describe(value));
    }
  }

  void add_text(const std::string& text) {
    add(kText);
    add(static_cast<int64_t>(text.size()));
    for (const char letter : text) add(int64_t{letter});
  }

  void add_kwargs(const Kwargs& kwargs) {
    add(static_cast<int64_t>(kwargs.size()));
    for (const auto& [name, value] : kwargs) {
      add_text(name);
      add_value(value);
    }
  }

  // A tensor whose data does not move between steps.
  void add_state(const at::Tensor& tensor) {
    add_address(tensor.defined() && tensor.has_storage() ? tensor.const_data_ptr() : nullptr);
  }

  void refuse(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
  }

  KeyOrReason finish() {
    if (!reason_.empty()) return {.key = std::nullopt, .reason = std::move(reason_)};
    return {.key = std::move(key_), .reason = {}};
  }

 private:
  enum Kind : int64_t {
    kNone,
    kTensor,
    kBool,
    kInt,
    kDouble,
    kText,
    kTuple,
    kList,
    kDict,
    kOpaque
  };

  void add_tensor(const at::Tensor& tensor) {
    add(kTensor);
    add(int64_t{tensor.defined()});
    if (!tensor.defined()) return;
    if (tensor.requires_grad()) return refuse("an argument of the model requires grad");
    if (tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg()) {
      return refuse("an argument is " + describe(tensor));
    }
    add(static_cast<int64_t>(tensor.scalar_type()));
    add(static_cast<int64_t>(tensor.device().type()));
    add(int64_t{tensor.device().index()});
    add(tensor.dim());
    for (const int64_t size : tensor.sizes()) add(size);
    for (const int64_t stride : tensor.strides()) add(stride);
  }

  StepKey key_;
  std::string reason_;
};

namespace {

void add_batch(StepKeyBuilder& key, const Microbatches& batch, const StepOptions& options) {
  key.add(static_cast<int64_t>(options.outputs));
  key.add(int64_t{options.output_spec.has_value()});
  if (options.output_spec) key.refuse("StepOptions::output_spec is set");
  for (const Arguments& each : batch.inputs) {
    key.add(static_cast<int64_t>(each.args.size()));
    for (const c10::IValue& value : each.args) key.add_value(value);
    key.add_kwargs(each.kwargs);
  }
  for (const c10::IValue& target : batch.targets) key.add_value(target);
  for (const double weight : batch.weights) key.add(weight);
  key.add_kwargs(options.loss_arguments);
}

}  // namespace

uint64_t StepKey::checksum() const {
  return detail::checksum(std::as_bytes(std::span(words_)));
}

uint64_t checksum_of_shapes(const Microbatches& batch, const StepOptions& options) {
  StepKeyBuilder key;
  add_batch(key, batch, options);
  const KeyOrReason found = key.finish();
  return found.key ? found.key->checksum() : 0;
}

KeyOrReason key_of(const StepPlan& plan, const std::vector<const Stage*>& stages, uint64_t shapes) {
  StepKeyBuilder key;
  if (c10::InferenceMode::is_enabled()) key.refuse("inference mode is on");
  key.add(static_cast<int64_t>(shapes));
  key.add(int64_t{plan.is_training});
  key.add(int64_t{plan.schedule->num_microbatches()});
  add_batch(key, *plan.batch, *plan.options);
  for (const c10::DeviceType type : {c10::kCPU, c10::kCUDA}) {
    key.add(int64_t{at::autocast::is_autocast_enabled(type)});
    key.add(static_cast<int64_t>(at::autocast::get_autocast_dtype(type)));
  }
  key.add(int64_t{at::autocast::is_autocast_cache_enabled()});
  key.add(int64_t{at::globalContext().deterministicAlgorithms()});
  for (const Stage* stage : stages) {
    key.add(int64_t{stage->options().recompute});
    for (const auto& [name, parameter] : stage->parameters()) {
      key.add_state(parameter);
      key.add(int64_t{parameter.requires_grad()});
      if (plan.is_training) key.add_state(parameter.grad());
    }
    for (const auto& [name, buffer] : stage->buffers()) key.add_state(buffer);
  }
  return key.finish();
}

}  // namespace stagecraft::detail
