#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/tree/arguments.h"
#include "tests/support/test_model.h"

namespace stagecraft {

/// The stages of a pipe, for the references of tests/support. The loss is the mean of the squares
/// of the output, which is a tensor.
TestModel test_model(const Pipe& pipe);

struct PipeCheckOptions {
  double uncut_tolerance = 0;  ///< 0 where the cut regroups no sum
  double cut_tolerance = 0;    ///< 0 where the kernels give the same bits every time
};

/// Trains two steps of uneven microbatches with each schedule that fits the number of stages (1F1B,
/// GPipe, Interleaved1F1B, and ZBVZeroBubble, which takes two stages a rank, or
/// InterleavedZeroBubble). Compares with the cut loop and the uncut graph. Returns the first
/// difference, or nothing.
std::string train_everywhere(const Pipe& pipe, const std::function<Arguments(int64_t)>& inputs,
                             const PipeCheckOptions& options = {});

/// Expects that running the pipe here gives the model's output and gradients, bit for bit; those of
/// a parameter that has copies, which are added up, to 1e-6.
void expect_same_run(const Pipe& pipe, const StageBody& model, const Arguments& arguments);

}  // namespace stagecraft
