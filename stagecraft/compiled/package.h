#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/size_expr.h"

namespace stagecraft {

/// A size of the graphs (GraphSize) that may change from call to call.
struct CompiledSize {
  std::string name;
  int64_t least = 1;
  int64_t greatest = std::numeric_limits<int64_t>::max();
  int64_t example = 1;
};

/// A size of the graphs that was fixed when the stages were compiled.
struct FixedSize {
  std::string name;
  int64_t value = 1;
};

/// An input or output of a compiled program.
struct ProgramSlot {
  /// What a slot holds.
  enum class Kind : uint8_t {
    kParameter,
    kBuffer,
    kInput,     ///< an input of the stage
    kSeeds,     ///< int64, one for each operator that draws
    kSizes,     ///< a tensor without memory; only its sizes are read
    kPrepared,  ///< output of `prepare`: depends on parameters alone
    kSaved,     ///< output of `forward` that a backward reads
    kKept,      ///< output of `input_backward` that `weight_backward` reads
    kOutputGrad,
    kOutput,  ///< an output of the stage
    kInputGrad,
    kParameterGrad,
    kBufferUpdate,  ///< the new value of a buffer
  };

  Kind kind = Kind::kInput;
  /// The number of the parameter, buffer, input, saved value, ... For an output, the number of the
  /// leaf in the stage's graph.
  std::size_t index = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Expressions over the package's sizes. Without a value, the size or stride is not known.
  std::vector<std::optional<SizeExpr>> sizes = {};
  std::vector<std::optional<SizeExpr>> strides = {};
};

/// What a compiled program reads and returns, in order.
struct ProgramInfo {
  std::vector<ProgramSlot> inputs = {};
  std::vector<ProgramSlot> outputs = {};
};

/// The kinds of programs of a stage.
enum class ProgramKind : uint8_t {
  kForward,
  kBackward,        ///< B
  kInputBackward,   ///< I
  kWeightBackward,  ///< W
  kPrepare,         ///< computes what depends on parameters alone
  kEval,            ///< a forward without saved values
};
inline constexpr std::size_t kNumProgramKinds = 6;
/// "forward", "input_backward", ...
std::string_view name_of(ProgramKind kind);

/// A compiled stage of a package.
struct CompiledStageInfo {
  std::string code;  ///< the member with its programs; identical stages share one
  std::vector<std::string> parameters = {};
  std::vector<std::size_t> trained = {};  ///< numbers of parameters with gradients
  std::vector<std::string> buffers = {};  ///< also constants of the graph
  std::vector<std::string> inputs = {};   ///< names of the tensors among the graph's inputs
  /// Names of the leaves of the graph's outputs; empty for a leaf that is not a tensor.
  std::vector<std::string> outputs = {};
  std::vector<std::size_t> input_grads = {};   ///< inputs that get gradients
  std::vector<std::size_t> output_grads = {};  ///< outputs whose gradients are read
  std::vector<std::string> draws = {};         ///< names of the operators that draw random numbers
  int64_t saved_bytes = 0;     ///< held by a microbatch after F, at the sizes of the example
  int64_t kept_bytes = 0;      ///< held by a microbatch after I
  int64_t prepared_bytes = 0;  ///< held by the stage after `prepare`
  std::array<std::optional<ProgramInfo>, kNumProgramKinds> programs = {};

  const ProgramInfo* find(ProgramKind kind) const {
    const auto& program = programs[static_cast<std::size_t>(kind)];
    return program ? &*program : nullptr;
  }
};

/// The description of a package of compiled stages.
struct PackageInfo {
  std::string torch;       ///< the version that compiled it: "2.15.0"
  std::string device;      ///< "cpu" or "cuda"
  std::string processor;   ///< the host's: "aarch64", "x86_64"
  std::string capability;  ///< "AVX2", "SVE256", "sm_90"
  /// Instruction sets of the processor that compiled it; empty for a GPU, or if they are not known.
  std::vector<std::string> instructions = {};
  std::string autocast;  ///< "bfloat16", "float16"; empty: none
  std::vector<CompiledSize> sizes = {};
  std::vector<FixedSize> fixed = {};
  std::vector<CompiledStageInfo> stages = {};
};

/// A package of compiled stages (NAME.scp), which `stagecraft compile` writes: the pipe with its
/// weights, and for each stage the programs that Inductor compiled. The file is mapped into memory.
///
/// FileError, which names the file, if it is not such a package, is truncated or damaged (every
/// member has a checksum), or was written in a different format.
class CompiledPackage {
 public:
  explicit CompiledPackage(const std::string& path);
  ~CompiledPackage();
  CompiledPackage(CompiledPackage&&) noexcept;
  CompiledPackage& operator=(CompiledPackage&&) noexcept;

  const std::string& path() const;
  const PackageInfo& info() const;
  /// FileError if this process cannot run the package's programs: a different version of torch, a
  /// different kind of device or processor, or instructions that this processor lacks. The message
  /// says what the package needs and what was found.
  void require_runs_on(c10::Device device) const;

  /// The pipe file (partition/pipe_file.h).
  std::span<const std::byte> pipe() const;
  /// The programs of a stage: an archive of AOTInductor.
  std::span<const std::byte> code(StageId stage) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
