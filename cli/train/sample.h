#pragma once

#include <cstdint>
#include <string>

#include "cli/train/task.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft::cli {

struct SampleOptions {
  int64_t context = 64;
  int64_t length = 200;  ///< bytes
  int32_t rows = 1;      ///< texts that are drawn side by side, one a microbatch; the first is told
  double temperature = 0.8;
  uint64_t seed = 0;
  c10::Device device = c10::kCPU;
};

/// A text that goes on from the prompt, byte by byte, through the pipeline.
std::string sample_text(Trainer& trainer, const Task& task, const std::string& prompt,
                        const SampleOptions& options);

}  // namespace stagecraft::cli
