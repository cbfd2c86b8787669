#include "tests/partition/saved_case.h"

#include <fstream>
#include <iterator>
#include <utility>

#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "stagecraft/partition/pipe_file.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/reference.h"

namespace stagecraft {

namespace {

constexpr uint64_t kDraw = 11;

/// The output, then the gradients; None where there is none.
std::vector<c10::IValue> run(const Pipe& pipe, const Args& args, const Kwargs& kwargs) {
  const at::Tensor output = pipe.run(args, kwargs, kDraw).toTensor();
  torch::autograd::backward({output.pow(2).mean()});
  std::vector<c10::IValue> result = {output.detach()};
  for (const at::Tensor& parameter : pipe.parameters()) {
    result.push_back(parameter.grad().defined() ? c10::IValue(parameter.grad()) : c10::IValue());
    parameter.mutable_grad().reset();
  }
  return result;
}

}  // namespace

void save_case(const Pipe& pipe, const Arguments& arguments, const std::filesystem::path& folder,
               const std::string& name) {
  // Before it runs: a run may change buffers.
  save_pipe(pipe, folder / (name + ".pipe"));
  std::vector<std::pair<std::string, c10::IValue>> kwargs;
  for (const auto& [key, value] : arguments.kwargs) kwargs.emplace_back(key, value);
  const std::vector<char> bytes = torch::jit::pickle_save(
      tree::tuple({tree::tuple(arguments.args), tree::dict(std::move(kwargs)),
                   tree::tuple(run(pipe, arguments.args, arguments.kwargs))}));
  std::ofstream(folder / (name + ".case"), std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string check_case(const std::filesystem::path& folder, const std::string& name) {
  std::ifstream in(folder / (name + ".case"), std::ios::binary);
  const c10::IValue saved =
      torch::jit::pickle_load(std::vector<char>((std::istreambuf_iterator<char>(in)), {}));
  const auto& parts = saved.toTupleRef().elements();
  Kwargs kwargs;
  for (const auto& entry : parts[1].toGenericDict()) {
    kwargs.set(entry.key().toStringRef(), entry.value());
  }
  const Pipe pipe = load_pipe(folder / (name + ".pipe"));
  return difference(name, tree::tuple(run(pipe, parts[0].toTupleRef().elements().vec(), kwargs)),
                    parts[2]);
}

}  // namespace stagecraft
