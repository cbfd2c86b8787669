#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "stagecraft/compiled/compiled_stage.h"
#include "stagecraft/compiled/package.h"
#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// Options of CompiledPipe::load.
struct CompiledLoadOptions {
  /// The device of the weights, on which the stages compute. By default the kind of device that the
  /// package was compiled for. If there are several GPUs, the current one.
  std::optional<c10::Device> device = std::nullopt;
  CompiledOptions stages = {};
};

/// What a compiled stage holds, in bytes, at the sizes of the example that it was compiled with.
struct CompiledMemory {
  int64_t parameters = 0;
  int64_t saved = 0;  ///< by a microbatch after F
  int64_t kept = 0;   ///< by a microbatch after I
};

/// A pipe whose stages were compiled ahead of time (`stagecraft compile`). It is used like any
/// Pipe; Python is not needed:
///
///   CompiledPipe pipe = CompiledPipe::load("model.scp");
///   Pipeline run(pipe, {.schedule = "ZBVZeroBubble", .loss = loss});
///
/// The split is that of the package. The caller chooses everything else: schedule, ranks,
/// recompute, loss. run() runs the graphs of the stages operator by operator, as a reference.
class CompiledPipe : public Pipe {
 public:
  /// FileError if the package is damaged, or cannot run here (CompiledPackage::require_runs_on).
  /// Programs are loaded when a stage is built.
  static CompiledPipe load(const std::string& path, const CompiledLoadOptions& options = {});

  const PackageInfo& package() const { return package_->info(); }
  std::vector<CompiledMemory> memory() const;

 private:
  CompiledPipe(Pipe pipe, std::shared_ptr<const CompiledPackage> package);

  std::shared_ptr<const CompiledPackage> package_;
};

}  // namespace stagecraft
