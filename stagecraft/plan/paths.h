#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/instance.h"

namespace stagecraft::plan {

/// Which edges of the stage graph count.
enum class PathEdges : uint8_t { kAll, kChain };

/// Times of one microbatch alone, the smallest, by stage.
struct Paths {
  std::vector<double> head;        ///< before its F can start
  std::vector<double> head_input;  ///< before its I can start
  std::vector<double> tail;        ///< from the end of its F to the end of all
  std::vector<double> tail_input;  ///< from the end of its I to the end of all

  /// With kChain, differences between entries are also times between actions of one microbatch.
  Paths(const Instance& in, PathEdges edges);
};

}  // namespace stagecraft::plan
