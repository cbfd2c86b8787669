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
    kInput,     ///< of the stage
    kSeeds,     ///< int64, one for each operator that draws
    kSizes,     ///< a tensor without memory; only its sizes are read
    kPrepared,  ///< output of `prepare`: depends on parameters alone
    kSaved,     ///< output of `forward` that a backward reads
    kKept,      ///< output of `input_backward` that `weight_backward` reads
    kOutputGrad,
    kOutput,  ///< of the stage
    kInputGrad,
    kParameterGrad,
    kBufferUpdate,  ///< the new value of a buffer
  };

  Kind kind = Kind::kInput;
  /// The number of the parameter, buffer, input, saved value, ...; of an output, the leaf of the
  /// stage's graph.
  std::size_t index = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// In the package's sizes; nothing where the size or stride is not known.
  std::vector<std::optional<SizeExpr>> sizes = {};
  std::vector<std::optional<SizeExpr>> strides = {};
};

/// What a compiled program reads and returns, in order.
struct ProgramInfo {
  std::vector<ProgramSlot> inputs = {};
  std::vector<ProgramSlot> outputs = {};
};

/// The programs of a stage.
enum class ProgramKind : uint8_t {
  kForward,
  kBackward,        ///< B
  kInputBackward,   ///< I
  kWeightBackward,  ///< W
  kPrepare,         ///< what depends on parameters alone
  kEval,            ///< forward without saved values
};
inline constexpr std::size_t kNumProgramKinds = 6;
/// "forward", "input_backward", ...
std::string_view name_of(ProgramKind kind);

/// A compiled stage of a package.
struct CompiledStageInfo {
  std::string code;  ///< the member with its programs; identical stages have the same
  std::vector<std::string> parameters = {};
  std::vector<std::size_t> trained = {};  ///< numbers of the parameters that get gradients
  std::vector<std::string> buffers = {};  ///< also constants of the graph
  std::vector<std::string> inputs = {};   ///< names of the tensors among the graph's inputs
  /// Names of the leaves of the graph's outputs; empty for a leaf that is no tensor.
  std::vector<std::string> outputs = {};
  std::vector<std::size_t> input_grads = {};   ///< inputs that get gradients
  std::vector<std::size_t> output_grads = {};  ///< outputs whose gradients are read
  std::vector<std::string> draws = {};         ///< names of the operators that draw random numbers
  int64_t saved_bytes = 0;     ///< that a microbatch holds after F, at the sizes of the example
  int64_t kept_bytes = 0;      ///< and after I
  int64_t prepared_bytes = 0;  ///< that the stage holds from `prepare` on
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
  std::string processor;   ///< of the host: "aarch64", "x86_64"
  std::string capability;  ///< "AVX2", "SVE256", "sm_90"
  /// Instruction sets of the processor that compiled it; empty for a GPU, or if they are not known.
  std::vector<std::string> instructions = {};
  std::string autocast;  ///< "bfloat16", "float16"; empty: none
  std::vector<CompiledSize> sizes = {};
  std::vector<FixedSize> fixed = {};
  std::vector<CompiledStageInfo> stages = {};
};

/// A package of compiled stages (NAME.scp), which `stagecraft compile` writes: the pipe with its
/// weights, and for each stage the programs that Inductor compiled. The file is mapped.
///
/// FileError, which names the file, if it is no such package, is cut off or damaged (every member
/// has a checksum), or was written in a different format.
class CompiledPackage {
 public:
  explicit CompiledPackage(const std::string& path);
  ~CompiledPackage();
  CompiledPackage(CompiledPackage&&) noexcept;
  CompiledPackage& operator=(CompiledPackage&&) noexcept;

  const std::string& path() const;
  const PackageInfo& info() const;
  /// FileError if this program cannot run the package's programs: a different version of torch, a
  /// different kind of device or processor, instructions that this processor does not have. It says
  /// what the package needs and what is here.
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
