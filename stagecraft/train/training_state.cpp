#include "stagecraft/train/training_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/check.h"
#include "stagecraft/shard/storage_memory.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

namespace {

constexpr const char* kModel = "model";
constexpr const char* kAverage = "average";
constexpr const char* kSquare = "average_square";
constexpr const char* kUpdates = "updates";
constexpr const char* kMaster = "master";  // float32 copies of parameters of half types

using Section = std::map<std::string, at::Tensor>;

/// A section of all stages together.
Section gather(const Checkpoint& checkpoint, const std::string& section) {
  Section all;
  for (const auto& stage : checkpoint.stages) {
    const auto found = stage.find(section);
    if (found == stage.end()) continue;
    for (const auto& [name, tensor] : found->second) all.emplace(name, tensor);
  }
  return all;
}

/// The copies that a restore makes. All of them are checked before the first is made.
class Restore {
 public:
  /// Without a target (`to`), the tensor is only compared with the expected shape and dtype. With a
  /// `begin` of at least 0, the target is a piece: the elements from `begin` on, in the order of
  /// the memory of `like`. `is_float_too`: if `like` has a half type, the tensor may also be
  /// float32, because it was written with AdamWOptions::master_weights.
  void add(const Section& section, const std::string& what, const std::string& name,
           const at::Tensor& like, const at::Tensor& to, int64_t begin = -1,
           bool is_float_too = false) {
    const auto found = section.find(name);
    require<MetadataError>(found != section.end(), "the checkpoint has no {} of {}", what, name);
    const at::Tensor& from = found->second;
    const bool is_float = is_float_too && at::isReducedFloatingType(like.scalar_type()) &&
                          from.scalar_type() == at::kFloat;
    require<MetadataError>(
        from.sizes() == like.sizes() && (from.scalar_type() == like.scalar_type() || is_float),
        "{} of {}: expected {}, but the checkpoint has {}", what, name, describe(like),
        describe(from));
    if (!to.defined()) return;
    if (begin < 0) {
      copies_.emplace_back(to.detach(), from);
      return;
    }
    const at::Tensor laid_out =
        from.strides() == like.strides()
            ? from
            : at::empty_strided(like.sizes(), like.strides(), from.options()).copy_(from);
    copies_.emplace_back(to.detach(), in_memory_order(laid_out).narrow(0, begin, to.numel()));
  }
  void run() const {
    const at::NoGradGuard no_grad;
    for (const auto& [to, from] : copies_) to.copy_(from);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

void check_no_others(const Section& section, const std::vector<ModelState>& states) {
  std::set<std::string_view> known;
  for (const ModelState& state : states) known.insert(state.name);
  for (const auto& [name, tensor] : section) {
    require<MetadataError>(known.contains(name),
                           "the checkpoint has {}, which this model does not have", name);
  }
}

std::vector<ModelState> states_here(const Pipe& pipe, const std::vector<ModelState>& all,
                                    const std::function<bool(StageId)>& is_here) {
  std::set<const c10::TensorImpl*> held;
  for (StageId s(0); s.value() < pipe.num_stages(); ++s) {
    if (!is_here(s)) continue;
    for (const GraphState& state : pipe.stage_graph(s).parts().states) {
      held.insert(state.tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<ModelState> here;
  for (ModelState state : all) {
    std::erase_if(state.copies, [&](const at::Tensor& copy) {
      return !held.contains(copy.unsafeGetTensorImpl());
    });
    if (!state.copies.empty()) here.push_back(std::move(state));
  }
  return here;
}

}  // namespace

TrainingState::TrainingState(const Pipe& pipe, const AdamWOptions& options,
                             const std::function<bool(StageId)>& is_here,
                             std::shared_ptr<ParameterShards> shards)
    : shards_(std::move(shards)),
      all_(model_states(pipe)),
      here_(shards_ ? sharded(states_here(pipe, all_, is_here), *shards_, pieces_)
                    : states_here(pipe, all_, is_here)),
      optimizer_(here_, options) {}

// The states with pieces instead of sharded parameters. A parameter is left out if this replica has
// no element of it.
std::vector<ModelState> TrainingState::sharded(std::vector<ModelState> states,
                                               const ParameterShards& shards,
                                               std::vector<Piece>& pieces) {
  std::vector<ModelState> here;
  for (ModelState& state : states) {
    if (!state.is_trained() || shards.find_unit(state.tensor()) == nullptr) {
      here.push_back(std::move(state));
      continue;
    }
    state.dims = state.tensor().dim();
    for (at::Tensor& copy : state.copies) {
      ShardUnit* const unit = shards.find_unit(copy);
      const auto& segments = unit->segments();
      const auto own = std::ranges::find_if(segments, [&](const ShardSegment& segment) {
        return unit->parameters()[segment.parameter].tensor.is_same(copy);
      });
      copy = at::Tensor();
      if (own == segments.end()) continue;
      const auto segment = static_cast<std::size_t>(own - segments.begin());
      state.begin = own->begin;
      copy = unit->value(segment).detach().requires_grad_(true);
      pieces.push_back({unit, segment, copy});
    }
    std::erase_if(state.copies, [](const at::Tensor& copy) { return !copy.defined(); });
    if (!state.copies.empty()) here.push_back(std::move(state));
  }
  return here;
}

void TrainingState::attach_grads() {
  for (const Piece& piece : pieces_) piece.tensor.mutable_grad() = piece.unit->grad(piece.segment);
}

void TrainingState::zero_grad() {
  optimizer_.zero_grad();
  if (shards_) shards_->zero_grad();
}

int64_t TrainingState::optimizer_bytes() const {
  int64_t bytes = 0;
  for (const AdamW::Moments& moments : optimizer_.moments()) {
    for (const at::Tensor& each :
         {moments.average, moments.average_square, moments.updates, moments.master}) {
      if (each.defined()) bytes += static_cast<int64_t>(each.nbytes());
    }
  }
  return bytes;
}

const ModelState* TrainingState::find_here(const std::string& name) const {
  const auto found =
      std::ranges::find_if(here_, [&](const ModelState& state) { return state.name == name; });
  return found == here_.end() ? nullptr : &*found;
}

void TrainingState::fill_part(Checkpoint& checkpoint, const Checkpoint::Part& part,
                              const std::function<bool(StageId)>& is_here) const {
  checkpoint.part = part;
  std::map<std::string, NamedTensors>& sections = checkpoint.stages.emplace_back();
  const bool is_first = shards_->group().own == 0;
  for (const ModelState& whole : all_) {
    const ModelState* const own = is_here(whole.stage) ? find_here(whole.name) : nullptr;
    if (own == nullptr) continue;
    const bool is_piece = own->dims.has_value();
    const auto add = [&](const char* section, const at::Tensor& tensor, bool is_part) {
      if (is_part) {
        checkpoint.part->pieces[section][whole.name] = {.begin = own->begin,
                                                        .sizes = whole.tensor().sizes().vec(),
                                                        .strides = whole.tensor().strides().vec()};
      } else if (!is_first && !(is_piece && own->begin == 0)) {
        return;  // a different replica has it, too
      }
      sections[section].emplace_back(whole.name, tensor);
    };
    add(kModel, own->tensor().detach(), is_piece);
    const AdamW::Moments* const moments = find_moments(whole.name);
    if (moments == nullptr) continue;
    add(kAverage, moments->average, is_piece);
    add(kSquare, moments->average_square, is_piece);
    if (moments->master.defined()) add(kMaster, moments->master, is_piece);
    if (!is_piece || own->begin == 0) add(kUpdates, moments->updates, false);
  }
}

const AdamW::Moments* TrainingState::find_moments(const std::string& name) const {
  const std::vector<ModelState>& states = optimizer_.states();
  const auto found = std::find_if(states.begin(), states.end(),
                                  [&](const ModelState& state) { return state.name == name; });
  return found == states.end()
             ? nullptr
             : &optimizer_.moments()[static_cast<std::size_t>(found - states.begin())];
}

std::vector<at::Tensor> TrainingState::tensors_of(StageId stage, bool with_moments) const {
  std::vector<at::Tensor> tensors;
  for (const ModelState& state : all_) {
    if (state.stage != stage) continue;
    tensors.push_back(state.tensor());
    const AdamW::Moments* moments = with_moments ? find_moments(state.name) : nullptr;
    if (moments == nullptr) continue;
    tensors.insert(tensors.end(), {moments->average, moments->average_square, moments->updates});
    if (moments->master.defined()) tensors.push_back(moments->master);
  }
  return tensors;
}

std::map<std::string, NamedTensors> TrainingState::sections_of(
    StageId stage, const std::vector<at::Tensor>& tensors) const {
  std::map<std::string, NamedTensors> sections;
  auto next = tensors.begin();
  for (const ModelState& state : all_) {
    if (state.stage != stage) continue;
    sections[kModel].emplace_back(state.name, *next++);
    if (!state.is_trained()) continue;
    for (const char* section : {kAverage, kSquare, kUpdates}) {
      sections[section].emplace_back(state.name, *next++);
    }
    if (!optimizer_.has_master(state.tensor())) continue;
    sections[kMaster].emplace_back(state.name, *next++);
  }
  return sections;
}

void TrainingState::set_values(StageId stage, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  auto next = values.begin();
  for (const ModelState& state : all_) {
    if (state.stage != stage) continue;
    for (const at::Tensor& copy : state.copies) {
      if (released_.erase(copy.unsafeGetTensorImpl()) > 0) allocate_memory(copy, copy.nbytes());
      copy.detach().copy_(*next);
    }
    ++next;
  }
}

void TrainingState::release_others(const Pipe& pipe, const std::function<bool(StageId)>& is_here) {
  std::map<const c10::StorageImpl*, std::set<const c10::TensorImpl*>> users;
  std::set<const c10::StorageImpl*> kept;
  for (StageId s(0); s.value() < pipe.num_stages(); ++s) {
    for (const GraphState& state : pipe.stage_graph(s).parts().states) {
      if (!state.tensor.has_storage()) continue;
      const c10::StorageImpl* const storage = state.tensor.storage().unsafeGetStorageImpl();
      users[storage].insert(state.tensor.unsafeGetTensorImpl());
      if (is_here(s) || state.kind != GraphState::Kind::kParameter) kept.insert(storage);
    }
  }
  for (const ModelState& state : all_) {
    for (const at::Tensor& copy : state.copies) {
      const c10::StorageImpl* const storage = copy.storage().unsafeGetStorageImpl();
      const bool is_alone = users[storage].size() == 1 && storage->nbytes() == copy.nbytes();
      if (!is_alone || kept.contains(storage) || copy.numel() == 0) continue;
      release_memory(copy, state.name +
                               " is a parameter of a stage on a different rank; "
                               "Trainer::gather_weights gives rank 0 its elements");
      released_.insert(copy.unsafeGetTensorImpl());
    }
  }
}

void TrainingState::restore(const Checkpoint& checkpoint) {
  Restore restore;
  const Section model = gather(checkpoint, kModel);
  check_no_others(model, all_);
  const Section average = gather(checkpoint, kAverage);
  const Section square = gather(checkpoint, kSquare);
  const Section updates = gather(checkpoint, kUpdates);
  const Section master = gather(checkpoint, kMaster);
  const at::Tensor number = at::zeros({}, at::kFloat);
  const bool has_pieces = shards_ && shards_->kind() == ShardKind::kParameters;
  for (const ModelState& state : all_) {
    const std::string& name = state.name;
    const ModelState* const own = find_here(name);
    const bool is_piece = own != nullptr && own->dims.has_value();
    const int64_t begin = is_piece ? own->begin : -1;
    // A sharded weight has no elements outside of a step: only this replica's piece is set.
    for (const at::Tensor& copy : state.copies) {
      const bool is_released = (has_pieces && shards_->find_unit(copy) != nullptr) ||
                               released_.contains(copy.unsafeGetTensorImpl());
      restore.add(model, "value", name, copy, is_released ? at::Tensor() : copy);
    }
    if (has_pieces && is_piece) {
      for (const at::Tensor& copy : own->copies) {
        restore.add(model, "value", name, state.tensor(), copy, begin);
      }
    }
    if (!state.is_trained()) continue;
    const AdamW::Moments* const found = find_moments(name);
    const AdamW::Moments to = found == nullptr ? AdamW::Moments() : *found;
    restore.add(average, "average of gradients", name, state.tensor(), to.average, begin, true);
    restore.add(square, "average of squares", name, state.tensor(), to.average_square, begin, true);
    restore.add(updates, "number of updates", name, number, to.updates);
    if (!to.master.defined()) continue;
    // A checkpoint without float32 copies has their rounded values.
    restore.add(master.contains(name) ? master : model, "float32 value", name, state.tensor(),
                to.master, begin, true);
  }
  restore.run();
  optimizer_.spread_moments();
  zero_grad();
}

}  // namespace stagecraft
