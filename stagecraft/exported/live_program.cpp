#include "stagecraft/exported/live_program.h"

#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/exported/import_program.h"
#include "stagecraft/exported/payload.h"
#include "stagecraft/exported/read_program.h"
#include "stagecraft/graph/own_operators.h"
#include "stagecraft/graph/passes/dead_code.h"
#include "stagecraft/graph/passes/run_pass.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {

class LivePayload final : public exported::Payload {
 public:
  explicit LivePayload(const std::map<std::string, at::Tensor>& tensors) : tensors_(tensors) {}

  Found get(const std::string& name) const override {
    const auto found = tensors_.find(name);
    require<FileError>(found != tensors_.end(), "the program reads {}, which was not given", name);
    const at::Tensor& tensor = found->second;
    // Tensors of one storage get the same piece, so that they share their memory.
    return {tensor,
            fmt::format("{}", static_cast<const void*>(tensor.storage().unsafeGetStorageImpl()))};
  }

 private:
  const std::map<std::string, at::Tensor>& tensors_;
};

}  // namespace

LiveProgram read_live_program(std::string_view json,
                              const std::map<std::string, at::Tensor>& tensors) {
  register_own_operators();
  const exported::RawProgram raw = exported::read_program(json, "program");
  exported::ImportedProgram imported = exported::import_program(raw, LivePayload(tensors));
  return {run_pass(std::move(imported.parts), without_dead_code), std::move(imported.warnings)};
}

Graph with_tensors(const Graph& graph, const std::map<std::string, at::Tensor>& tensors) {
  GraphParts parts = graph.parts();
  for (GraphState& state : parts.states) {
    const auto found = tensors.find(parts.values[state.value].name);
    if (found == tensors.end()) continue;
    require<GraphError>(found->second.sizes() == state.tensor.sizes() &&
                            found->second.scalar_type() == state.tensor.scalar_type(),
                        "{}: the graph was made for {}, got {}", found->first,
                        describe(state.tensor), describe(found->second));
    state.tensor = found->second;
    parts.values[state.value].device = found->second.device();
  }
  return Graph(std::move(parts));
}

}  // namespace stagecraft
