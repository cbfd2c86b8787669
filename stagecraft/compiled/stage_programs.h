#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/compiled/compiled_program.h"
#include "stagecraft/compiled/package.h"
#include "stagecraft/compiled/slot_layout.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::detail {

using Tensors = std::vector<at::Tensor>;

/// What one microbatch holds between the programs of a stage. Any number may exist at the same
/// time.
struct Flight {
  std::vector<int64_t> sizes;  ///< the values of PackageInfo::sizes
  Tensors inputs;              ///< by number; undefined if no later program reads it
  Tensors saved;
  Tensors kept;
  Tensors output_grads;
  at::Tensor seeds;
  std::shared_ptr<const Tensors> prepared;
  /// Gradients of parameters, by number, that are not added yet.
  std::vector<std::pair<std::size_t, at::Tensor>> parameter_grads;
  uint64_t parameter_version = 0;
  std::vector<uint32_t> versions;  ///< autograd's versions of inputs, then of saved values
};

/// The programs of one compiled stage with its parameters and buffers, without autograd. Used by
/// one thread at a time.
///
///   Flight flight;
///   Tensors outputs = programs.forward({inputs, sizes, seeds}, &flight);
///   Tensors input_grads = programs.backward(flight, output_grads);          B, or
///   Tensors input_grads = programs.input_backward(flight, output_grads);    I
///   programs.weight_backward(flight);                                       W
///   programs.add_grads(flight);                                             B and W
///
/// Lists of tensors are indexed by the numbers in the package. A tensor that does not exist is
/// undefined. No call waits for the device.
class StagePrograms {
 public:
  /// The arguments of a forward.
  struct Given {
    Tensors inputs;                        ///< by number
    std::span<const int64_t> graph_sizes;  ///< those of InputBinding::sizes
    at::Tensor seeds;
  };

  /// Loads the programs. The stage's parameters and buffers are those of `graph`, by name. Error if
  /// a program cannot be loaded, FileError if the graph does not fit.
  StagePrograms(std::shared_ptr<const CompiledPackage> package, StageId stage, const Graph& graph,
                c10::Device device);

  const CompiledStageInfo& info() const { return info_; }
  c10::Device device() const { return device_; }
  bool has(ProgramKind kind) const { return program(kind).has_value(); }

  /// Runs `forward` and keeps in `flight` what the backwards read. Without a flight nothing is
  /// kept. `is_eval` then says whether the program `eval` may be used. Its results may differ in
  /// the last bits. MetadataError for sizes that the stage was not compiled for.
  Tensors forward(Given given, Flight* flight, bool is_eval = false);

  /// The gradients of the inputs. Gradients of parameters are left in the flight: call `add_grads`.
  Tensors backward(Flight& flight, Tensors output_grads);
  Tensors input_backward(Flight& flight, Tensors output_grads);
  /// Computes the rest of the parameters' gradients, after input_backward, and leaves them in the
  /// flight.
  void weight_backward(Flight& flight);
  /// Adds the gradients of the flight to the .grad of the parameters, in place.
  void add_grads(Flight& flight);

  /// Makes the next forward run `prepare` again. (A forward also runs it if a parameter's version
  /// has changed.)
  void forget_prepared() { prepared_.reset(); }

 private:
  struct Loaded {
    const ProgramInfo* info = nullptr;
    CompiledProgram program;
    /// For each input of the program, whether it is the last that reads its value.
    std::vector<bool> is_last;
  };

  std::optional<Loaded>& program(ProgramKind kind) {
    return programs_[static_cast<std::size_t>(kind)];
  }
  const std::optional<Loaded>& program(ProgramKind kind) const {
    return programs_[static_cast<std::size_t>(kind)];
  }
  void load(ProgramKind kind, const ProgramFile& file);
  void mark_last_reads();
  void check_states() const;
  at::Tensor take(const ProgramSlot& slot, Flight& flight, bool is_last);
  at::Tensor sizes_tensor(const ProgramSlot& slot, std::span<const int64_t> sizes);
  Tensors run(ProgramKind kind, Flight& flight);
  std::shared_ptr<const Tensors> prepared();
  uint64_t parameter_version() const;
  void give_output_grads(Flight& flight, Tensors output_grads, ProgramKind first);
  void check_unchanged(const Flight& flight) const;
  /// Moves the results of a backward into the flight, and returns the gradients of the inputs.
  Tensors sort_grads(ProgramKind kind, Tensors results, Flight& flight);

  std::shared_ptr<const CompiledPackage> package_;
  std::size_t stage_;
  const CompiledStageInfo& info_;
  c10::Device device_;
  StageSizes sizes_;
  Tensors parameters_;
  Tensors buffers_;
  std::array<std::optional<Loaded>, kNumProgramKinds> programs_;
  std::vector<bool> keeps_input_;  // by input: whether a backward reads it
  bool keeps_seeds_ = false;
  std::size_t num_saved_ = 0;
  std::size_t num_kept_ = 0;
  std::shared_ptr<const Tensors> prepared_;
  std::vector<std::pair<uint64_t, const void*>> prepared_from_;
  std::vector<at::Tensor> scalars_;  // one for each dtype that was needed
};

}  // namespace stagecraft::detail
