#include "stagecraft/compiled/compiled_pipe.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/compiled/slot_layout.h"
#include "stagecraft/partition/pipe_file.h"

namespace stagecraft {
namespace {

class CompiledBodies final : public StageBodies {
 public:
  CompiledBodies(std::shared_ptr<const CompiledPackage> package, const CompiledOptions& options)
      : package_(std::move(package)), options_(options) {}

  StageBody body(StageId stage, const Graph& graph) const override {
    const GraphParts& parts = graph.parts();
    c10::Device device = c10::Device(package_->info().device);
    if (!parts.states.empty()) device = parts.states.front().tensor.device();
    package_->require_runs_on(device);
    return compiled_body(package_, stage, graph, device, options_);
  }

  void check_sizes(const Graph& model, std::span<const int64_t> sizes) const override {
    detail::compiled_sizes(package_->info(), model, sizes, "");
  }

 private:
  std::shared_ptr<const CompiledPackage> package_;
  CompiledOptions options_;
};

c10::Device device_here(const CompiledPackage& package, std::optional<c10::Device> device) {
  c10::Device chosen = device.value_or(c10::Device(package.info().device));
  // If the package was compiled for a different kind of device, require_runs_on fails and says so.
  if (chosen.is_cuda() && package.info().device == "cuda") {
    require<FileError>(at::globalContext().hasCUDA(),
                       "{}: its stages were compiled for a GPU ({}), but there is none here, or "
                       "this torch does not support it",
                       package.path(), package.info().capability);
    if (!chosen.has_index()) {
      chosen = c10::impl::VirtualGuardImpl(chosen.type()).getDevice();
    }
  }
  return chosen;
}

}  // namespace

CompiledPipe::CompiledPipe(Pipe pipe, std::shared_ptr<const CompiledPackage> package)
    : Pipe(std::move(pipe)), package_(std::move(package)) {}

CompiledPipe CompiledPipe::load(const std::string& path, const CompiledLoadOptions& options) {
  auto package = std::make_shared<const CompiledPackage>(path);
  const c10::Device device = device_here(*package, options.device);
  package->require_runs_on(device);
  Pipe pipe = load_pipe(path, package->pipe());
  require<FileError>(static_cast<std::size_t>(pipe.num_stages()) == package->info().stages.size(),
                     "{}: is damaged: its pipe has {} stages, its description {}", path,
                     pipe.num_stages(), package->info().stages.size());
  if (!device.is_cpu()) pipe = pipe.to(device);
  pipe = pipe.with_bodies(std::make_shared<CompiledBodies>(package, options.stages));
  return {std::move(pipe), std::move(package)};
}

std::vector<CompiledMemory> CompiledPipe::memory() const {
  std::vector<CompiledMemory> result;
  for (int32_t s = 0; s < num_stages(); ++s) {
    const CompiledStageInfo& stage = package().stages[static_cast<std::size_t>(s)];
    CompiledMemory& memory =
        result.emplace_back(CompiledMemory{.saved = stage.saved_bytes, .kept = stage.kept_bytes});
    for (const GraphState& state : stage_graph(StageId(s)).parts().states) {
      if (state.kind == GraphState::Kind::kParameter) {
        memory.parameters += static_cast<int64_t>(state.tensor.nbytes());
      }
    }
  }
  return result;
}

}  // namespace stagecraft
