#include "stagecraft/train/training_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

namespace {

constexpr const char* kModel = "model";
constexpr const char* kAverage = "average";
constexpr const char* kSquare = "average_square";
constexpr const char* kUpdates = "updates";

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
  /// Without a target (`to`), the tensor is only compared with the expected shape and dtype.
  void add(const Section& section, const std::string& what, const std::string& name,
           const at::Tensor& like, const at::Tensor& to) {
    const auto found = section.find(name);
    require<MetadataError>(found != section.end(), "the checkpoint has no {} of {}", what, name);
    const at::Tensor& from = found->second;
    require<MetadataError>(from.sizes() == like.sizes() && from.scalar_type() == like.scalar_type(),
                           "{} of {}: expected {}, but the checkpoint has {}", what, name,
                           describe(like), describe(from));
    if (to.defined()) copies_.emplace_back(to.detach(), from);
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
                             const std::function<bool(StageId)>& is_here)
    : all_(model_states(pipe)),
      here_(states_here(pipe, all_, is_here)),
      optimizer_(here_, options) {}

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
  }
  return sections;
}

void TrainingState::set_values(StageId stage, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  auto next = values.begin();
  for (const ModelState& state : all_) {
    if (state.stage != stage) continue;
    for (const at::Tensor& copy : state.copies) copy.detach().copy_(*next);
    ++next;
  }
}

void TrainingState::restore(const Checkpoint& checkpoint) {
  Restore restore;
  const Section model = gather(checkpoint, kModel);
  check_no_others(model, all_);
  const Section average = gather(checkpoint, kAverage);
  const Section square = gather(checkpoint, kSquare);
  const Section updates = gather(checkpoint, kUpdates);
  const at::Tensor number = at::zeros({}, at::kFloat);
  for (const ModelState& state : all_) {
    const std::string& name = state.name;
    for (const at::Tensor& copy : state.copies) restore.add(model, "value", name, copy, copy);
    if (!state.is_trained()) continue;
    const AdamW::Moments* const found = find_moments(name);
    const AdamW::Moments to = found == nullptr ? AdamW::Moments() : *found;
    restore.add(average, "average of gradients", name, state.tensor(), to.average);
    restore.add(square, "average of squares", name, state.tensor(), to.average_square);
    restore.add(updates, "number of updates", name, number, to.updates);
  }
  restore.run();
  optimizer_.spread_moments();
  optimizer_.zero_grad();
}

}  // namespace stagecraft
