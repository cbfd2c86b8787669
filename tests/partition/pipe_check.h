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
};

/// Trains two steps of uneven microbatches with each schedule that so many stages can have (1F1B,
/// Interleaved1F1B, ZBVZeroBubble, GPipe) and compares with the cut loop and the uncut graph. The
/// first difference, or nothing.
std::string train_everywhere(const Pipe& pipe, const std::function<Arguments(int64_t)>& inputs,
                             const PipeCheckOptions& options = {});

/// Expects that running the pipe here gives the model's output, bit for bit, and where no parameter
/// is shared its gradients too.
void expect_same_run(const Pipe& pipe, const StageBody& model, const Arguments& arguments);

}  // namespace stagecraft
