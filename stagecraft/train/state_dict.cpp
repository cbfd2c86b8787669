#include "stagecraft/train/state_dict.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/train/model_state.h"
#include "stagecraft/train/state_file.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

namespace {

/// Every name of a state in the unsplit model.
std::vector<std::string> names_of(const Pipe& pipe, const ModelState& state) {
  std::vector<std::string> names = {state.name};
  const GraphState* whole = pipe.graph().find_state(state.name);
  names.insert(names.end(), whole->other_names.begin(), whole->other_names.end());
  return names;
}

/// For tensors of one shape and dtype. Unlike at::equal, NaN is the same as NaN.
bool have_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b) || a.nbytes() == 0) return true;
  // A file that Python wrote may have its tensors on a GPU.
  const at::Tensor left = a.cpu().contiguous();
  const at::Tensor right = b.cpu().contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

}  // namespace

void save_state_dict(const Pipe& pipe, const std::string& path) {
  NamedTensors tensors;
  for (const ModelState& state : model_states(pipe)) {
    for (std::string& name : names_of(pipe, state)) {
      tensors.emplace_back(std::move(name), state.tensor());
    }
  }
  const std::string unfinished = path + ".unfinished";
  std::error_code error;
  try {
    detail::write_tensor_file(unfinished, tensors);
    std::filesystem::rename(unfinished, path, error);
    if (error) throw FileError(fmt::format("{}: cannot be written: {}", path, error.message()));
  } catch (const FileError&) {
    std::filesystem::remove(unfinished, error);
    throw;
  }
}

void load_state_dict(const Pipe& pipe, const std::string& path) {
  std::map<std::string, at::Tensor> given;
  for (auto& [name, tensor] : detail::read_tensor_file(path)) given.emplace(name, tensor);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::set<std::string> known;
  for (const ModelState& state : model_states(pipe)) {
    for (const std::string& name : names_of(pipe, state)) {
      const auto found = given.find(name);
      require<MetadataError>(found != given.end(), "{} has no {}", path, name);
      const at::Tensor& from = found->second;
      const at::Tensor& to = state.tensor();
      require<MetadataError>(from.sizes() == to.sizes() && from.scalar_type() == to.scalar_type(),
                             "{}: expected {}, {} has {}", name, describe(to), path,
                             describe(from));
      known.insert(name);
      require<MetadataError>(have_same_bytes(from, given.at(state.name)),
                             "{} and {} are the same tensor, but {} has two values for it",
                             state.name, name, path);
      for (const at::Tensor& copy : state.copies) copies.emplace_back(copy, from);
    }
  }
  for (const auto& [name, tensor] : given) {
    require<MetadataError>(known.contains(name), "{} has {}, which this model does not have", path,
                           name);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

}  // namespace stagecraft
