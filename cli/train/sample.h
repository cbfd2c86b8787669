#pragma once

#include <cstdint>
#include <string>

#include "cli/train/task.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft::cli {

/// Options of sample_text.
struct SampleOptions {
  int64_t context = 64;
  int64_t length = 200;  ///< bytes
  int32_t rows =
      1;  ///< texts that are sampled together, one for each microbatch; the first is returned
  double temperature = 0.8;
  uint64_t seed = 0;
  c10::Device device = c10::kCPU;
};

/// Continues the prompt byte by byte with the model, and returns the continuation.
std::string sample_text(Trainer& trainer, const Task& task, const std::string& prompt,
                        const SampleOptions& options);

}  // namespace stagecraft::cli
