#include "stagecraft/compiled/stage_programs.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft::detail {
namespace {

using Kind = ProgramSlot::Kind;

constexpr std::array<ProgramKind, 3> kBackwards = {
    ProgramKind::kBackward, ProgramKind::kInputBackward, ProgramKind::kWeightBackward};

bool is_same(const ProgramSlot& a, const ProgramSlot& b) {
  return a.kind == b.kind && a.index == b.index;
}

bool reads(const ProgramInfo* program, const ProgramSlot& slot) {
  return program != nullptr && std::ranges::any_of(program->inputs, [&](const ProgramSlot& each) {
           return is_same(each, slot);
         });
}

std::size_t count_of(const ProgramInfo* program, Kind kind) {
  std::size_t count = 0;
  if (program == nullptr) return count;
  for (const ProgramSlot& slot : program->outputs) {
    if (slot.kind == kind) count = std::max(count, slot.index + 1);
  }
  return count;
}

/// The tensor, or a copy if something else shares its memory or the memory is larger. Later
/// gradients are added to .grad in place, so it must own its memory.
at::Tensor owned(at::Tensor grad) {
  const c10::Storage& storage = grad.storage();
  const bool is_alone = grad.use_count() == 1 && storage.use_count() == 1;
  return is_alone && storage.nbytes() <= grad.nbytes() ? std::move(grad) : grad.clone();
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? static_cast<uint32_t>(tensor._version()) : 0;
}

/// The tensor of the graph's states with that name. FileError if there is none.
const at::Tensor& state_of(const Graph& graph, const std::string& name,
                           const CompiledPackage& package) {
  const GraphState* state = graph.find_state(name);
  require<FileError>(state != nullptr, "{}: is damaged: its pipe has no tensor '{}'",
                     package.path(), name);
  return state->tensor;
}

}  // namespace

StagePrograms::StagePrograms(std::shared_ptr<const CompiledPackage> package, StageId stage,
                             const Graph& graph, c10::Device device)
    : package_(std::move(package)),
      stage_(stage.position()),
      info_(package_->info().stages.at(stage_)),
      device_(device),
      sizes_(package_->info(), stage_, graph) {
  for (const std::string& name : info_.parameters) {
    parameters_.push_back(state_of(graph, name, *package_));
  }
  for (const std::string& name : info_.buffers) {
    buffers_.push_back(state_of(graph, name, *package_));
  }
  check_states();
  const ProgramFile file(package_->code(stage));
  for (std::size_t k = 0; k < kNumProgramKinds; ++k) load(static_cast<ProgramKind>(k), file);
  mark_last_reads();
}

void StagePrograms::load(ProgramKind kind, const ProgramFile& file) {
  const ProgramInfo* info = info_.find(kind);
  if (info == nullptr) return;
  try {
    program(kind).emplace(
        Loaded{info, CompiledProgram(file.path(), std::string(name_of(kind)), device_), {}});
  } catch (const Error& error) {
    throw Error(fmt::format("{}: stage {}: {}", package_->path(), stage_, error.what()));
  }
}

// Checks shapes and strides, because a program reads memory with the strides that it was compiled
// for.
void StagePrograms::check_states() const {
  const auto check = [&](Kind kind, std::size_t index, const at::Tensor& tensor,
                         const std::string& name) {
    const ProgramSlot* slot = find_slot(info_, kind, index);
    if (slot == nullptr) return;
    const std::vector<int64_t> none(package_->info().sizes.size(), 0);
    bool fits = tensor.scalar_type() == slot->dtype &&
                static_cast<std::size_t>(tensor.dim()) == slot->sizes.size() &&
                is_laid_out(tensor, *slot, none);
    for (std::size_t d = 0; fits && d < slot->sizes.size(); ++d) {
      const std::optional<SizeExpr>& size = slot->sizes[d];
      fits = !size || !size->is_number() || size->number() == tensor.sizes()[d];
    }
    require<FileError>(fits, "{}: stage {} was compiled for a different tensor '{}' than {}",
                       package_->path(), stage_, name, describe(tensor));
    require<ArgumentError>(tensor.device() == device_ || !device_.has_index(),
                           "{}: stage {} computes on {}, but '{}' is on {}", package_->path(),
                           stage_, device_.str(), name, tensor.device().str());
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    check(Kind::kParameter, i, parameters_[i], info_.parameters[i]);
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    check(Kind::kBuffer, i, buffers_[i], info_.buffers[i]);
  }
}

void StagePrograms::mark_last_reads() {
  keeps_input_.assign(info_.inputs.size(), false);
  const ProgramInfo* forward = info_.find(ProgramKind::kForward);
  for (const ProgramKind kind : kBackwards) {
    const ProgramInfo* info = info_.find(kind);
    if (info == nullptr) continue;
    for (const ProgramSlot& slot : info->inputs) {
      if (slot.kind == Kind::kInput) keeps_input_[slot.index] = true;
      if (slot.kind == Kind::kSeeds) keeps_seeds_ = true;
    }
  }
  num_saved_ = count_of(forward, Kind::kSaved);
  num_kept_ = count_of(info_.find(ProgramKind::kInputBackward), Kind::kKept);
  for (std::size_t k = 0; k < kNumProgramKinds; ++k) {
    const auto kind = static_cast<ProgramKind>(k);
    if (!program(kind)) continue;
    Loaded& loaded = *program(kind);
    const std::vector<ProgramSlot>& inputs = loaded.info->inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool is_read_again =
          std::any_of(inputs.begin() + static_cast<std::ptrdiff_t>(i) + 1, inputs.end(),
                      [&](const ProgramSlot& later) { return is_same(later, inputs[i]); });
      const bool is_read_later = kind == ProgramKind::kInputBackward &&
                                 reads(info_.find(ProgramKind::kWeightBackward), inputs[i]);
      loaded.is_last.push_back(!is_read_again && !is_read_later);
    }
  }
}

uint64_t StagePrograms::parameter_version() const {
  uint64_t sum = 0;
  for (const at::Tensor& parameter : parameters_) sum += version_of(parameter);
  return sum;
}

std::shared_ptr<const Tensors> StagePrograms::prepared() {
  if (!program(ProgramKind::kPrepare)) return nullptr;
  bool is_new = prepared_ != nullptr && prepared_from_.size() == parameters_.size();
  prepared_from_.resize(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::pair<uint64_t, const void*> now(version_of(parameters_[i]),
                                               parameters_[i].const_data_ptr());
    is_new = is_new && prepared_from_[i] == now;
    prepared_from_[i] = now;
  }
  if (is_new) return prepared_;
  prepared_.reset();
  Flight none;
  Tensors results = run(ProgramKind::kPrepare, none);
  const ProgramInfo* info = info_.find(ProgramKind::kPrepare);
  auto made = std::make_shared<Tensors>(count_of(info, Kind::kPrepared));
  for (std::size_t i = 0; i < results.size(); ++i) {
    (*made)[info->outputs[i].index] = std::move(results[i]);
  }
  prepared_ = std::move(made);
  return prepared_;
}

at::Tensor StagePrograms::sizes_tensor(const ProgramSlot& slot, std::span<const int64_t> sizes) {
  auto scalar = std::ranges::find_if(
      scalars_, [&](const at::Tensor& each) { return each.scalar_type() == slot.dtype; });
  if (scalar == scalars_.end()) {
    scalars_.push_back(at::empty({}, at::TensorOptions(device_).dtype(slot.dtype)));
    scalar = scalars_.end() - 1;
  }
  std::vector<int64_t> shape;
  for (const std::optional<SizeExpr>& size : slot.sizes) shape.push_back(size->at(sizes));
  return scalar->expand(shape);
}

at::Tensor StagePrograms::take(const ProgramSlot& slot, Flight& flight, bool is_last) {
  const auto from = [&](Tensors& tensors) {
    return is_last ? std::move(tensors[slot.index]) : tensors[slot.index];
  };
  switch (slot.kind) {
    case Kind::kParameter:
      return parameters_[slot.index];
    case Kind::kBuffer:
      return buffers_[slot.index];
    case Kind::kInput:
      return from(flight.inputs);
    case Kind::kSizes:
      return sizes_tensor(slot, flight.sizes);
    case Kind::kSeeds:
      return flight.seeds;
    case Kind::kPrepared:
      return (*flight.prepared)[slot.index];
    case Kind::kSaved:
      return from(flight.saved);
    case Kind::kKept:
      return from(flight.kept);
    case Kind::kOutputGrad:
      return from(flight.output_grads);
    default:
      return {};
  }
}

Tensors StagePrograms::run(ProgramKind kind, Flight& flight) {
  Loaded& loaded = *program(kind);
  std::optional<c10::DeviceGuard> guard;
  if (!device_.is_cpu()) guard.emplace(device_);
  Tensors arguments;
  arguments.reserve(loaded.info->inputs.size());
  for (std::size_t i = 0; i < loaded.info->inputs.size(); ++i) {
    arguments.push_back(take(loaded.info->inputs[i], flight, loaded.is_last[i]));
  }
  Tensors results = loaded.program.run(std::move(arguments));
  require<Error>(results.size() == loaded.info->outputs.size(),
                 "stage {}: the compiled program '{}' returned {} results, expected {}", stage_,
                 name_of(kind), results.size(), loaded.info->outputs.size());
  return results;
}

Tensors StagePrograms::forward(Given given, Flight* flight, bool is_eval) {
  Flight now;
  now.sizes = sizes_.of(given.graph_sizes, given.inputs);
  now.seeds = std::move(given.seeds);
  now.prepared = prepared();
  now.inputs.resize(given.inputs.size());
  const bool uses_eval = flight == nullptr && is_eval && has(ProgramKind::kEval);
  const ProgramKind kind = uses_eval ? ProgramKind::kEval : ProgramKind::kForward;
  const ProgramInfo& program = *info_.find(kind);
  for (const ProgramSlot& slot : program.inputs) {
    if (slot.kind == Kind::kInput && !now.inputs[slot.index].defined()) {
      now.inputs[slot.index] = laid_out(given.inputs[slot.index], slot, now.sizes);
    }
  }
  if (flight != nullptr) {
    flight->inputs.resize(given.inputs.size());
    for (std::size_t i = 0; i < given.inputs.size(); ++i) {
      if (!keeps_input_[i]) continue;
      flight->inputs[i] =
          now.inputs[i].defined()
              ? now.inputs[i]
              : laid_out(given.inputs[i], *find_slot(info_, Kind::kInput, i), now.sizes);
    }
    if (keeps_seeds_) flight->seeds = now.seeds;
    flight->sizes = now.sizes;
    flight->prepared = now.prepared;
    flight->saved.resize(num_saved_);
    flight->kept.resize(num_kept_);
    flight->parameter_version = parameter_version();
    for (const at::Tensor& input : flight->inputs) flight->versions.push_back(version_of(input));
  }
  given.inputs.clear();
  Tensors results = run(kind, now);
  Tensors outputs(info_.outputs.size());
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ProgramSlot& slot = program.outputs[i];
    if (slot.kind == Kind::kOutput) {
      // An alias of a parameter, an input or a saved value must not share a TensorImpl with it,
      // because it gets a history of its own.
      outputs[slot.index] = results[i].use_count() > 1 ? results[i].detach() : results[i];
    } else if (slot.kind == Kind::kSaved && flight != nullptr) {
      flight->saved[slot.index] = std::move(results[i]);
    } else if (slot.kind == Kind::kBufferUpdate) {
      buffers_[slot.index].copy_(results[i]);
    }
  }
  if (flight != nullptr) {
    for (const at::Tensor& saved : flight->saved) flight->versions.push_back(version_of(saved));
  }
  return outputs;
}

void StagePrograms::check_unchanged(const Flight& flight) const {
  require<Error>(flight.parameter_version == parameter_version(),
                 "stage {}: a parameter was changed in place between the forward of a microbatch "
                 "and its backward",
                 stage_);
  std::size_t n = 0;
  for (const Tensors* tensors : {&flight.inputs, &flight.saved}) {
    for (const at::Tensor& tensor : *tensors) {
      const uint32_t then = flight.versions[n++];
      require<Error>(!tensor.defined() || version_of(tensor) == then,
                     "stage {}: an input or output was changed in place between the forward of a "
                     "microbatch and its backward, which reads it; change a copy",
                     stage_);
    }
  }
}

void StagePrograms::give_output_grads(Flight& flight, Tensors output_grads, ProgramKind first) {
  flight.output_grads = std::move(output_grads);
  for (const ProgramKind kind : {first, ProgramKind::kWeightBackward}) {
    const ProgramInfo* info = info_.find(kind);
    if (info == nullptr || (first == ProgramKind::kBackward && kind != first)) continue;
    for (const ProgramSlot& slot : info->inputs) {
      if (slot.kind != Kind::kOutputGrad) continue;
      require<Error>(
          slot.index < flight.output_grads.size() && flight.output_grads[slot.index].defined(),
          "stage {}: the gradient of output {} is missing", stage_, slot.index);
      at::Tensor& grad = flight.output_grads[slot.index];
      if (grad.scalar_type() != slot.dtype) grad = grad.to(slot.dtype);
      grad = laid_out(grad, slot, flight.sizes);
    }
  }
}

Tensors StagePrograms::sort_grads(ProgramKind kind, Tensors results, Flight& flight) {
  const ProgramInfo& info = *info_.find(kind);
  Tensors input_grads(info_.inputs.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ProgramSlot& slot = info.outputs[i];
    if (slot.kind == Kind::kInputGrad) {
      input_grads[slot.index] = std::move(results[i]);
    } else if (slot.kind == Kind::kParameterGrad) {
      flight.parameter_grads.emplace_back(slot.index, std::move(results[i]));
    } else if (slot.kind == Kind::kKept) {
      flight.kept[slot.index] = std::move(results[i]);
    }
  }
  return input_grads;
}

Tensors StagePrograms::backward(Flight& flight, Tensors output_grads) {
  check_unchanged(flight);
  give_output_grads(flight, std::move(output_grads), ProgramKind::kBackward);
  Tensors results = run(ProgramKind::kBackward, flight);
  return sort_grads(ProgramKind::kBackward, std::move(results), flight);
}

Tensors StagePrograms::input_backward(Flight& flight, Tensors output_grads) {
  check_unchanged(flight);
  give_output_grads(flight, std::move(output_grads), ProgramKind::kInputBackward);
  Tensors results = run(ProgramKind::kInputBackward, flight);
  Tensors input_grads = sort_grads(ProgramKind::kInputBackward, std::move(results), flight);
  // Release what weight_backward does not read.
  const ProgramInfo* rest = info_.find(ProgramKind::kWeightBackward);
  const auto release = [&](Tensors& tensors, Kind kind) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined() && !reads(rest, {.kind = kind, .index = i})) tensors[i].reset();
    }
  };
  release(flight.inputs, Kind::kInput);
  release(flight.saved, Kind::kSaved);
  release(flight.output_grads, Kind::kOutputGrad);
  return input_grads;
}

void StagePrograms::weight_backward(Flight& flight) {
  check_unchanged(flight);
  Tensors results = run(ProgramKind::kWeightBackward, flight);
  sort_grads(ProgramKind::kWeightBackward, std::move(results), flight);
}

void StagePrograms::add_grads(Flight& flight) {
  const c10::NoGradGuard no_grad;
  std::optional<c10::DeviceGuard> guard;
  if (!device_.is_cpu()) guard.emplace(device_);
  Tensors sums;
  Tensors terms;
  for (auto& [index, grad] : flight.parameter_grads) {
    const at::Tensor& parameter = parameters_[index];
    if (!parameter.requires_grad()) continue;
    at::Tensor& sum = parameter.mutable_grad();
    if (sum.defined()) {
      sums.push_back(sum);
      terms.push_back(std::move(grad));
    } else {
      sum = owned(std::move(grad));
    }
  }
  flight.parameter_grads.clear();
  if (!sums.empty()) at::_foreach_add_(sums, terms);
}

}  // namespace stagecraft::detail
