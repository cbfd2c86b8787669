#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stagecraft::cli {

/// The command line of `stagecraft model`.
struct ModelCommand {
  std::string file;
  std::string program;           ///< empty: the only program, or a list of all
  std::optional<int32_t> depth;  ///< of modules; nothing: down to the layers
  bool is_all = false;           ///< every module, every boundary, every reason
  bool has_boundaries = false;   ///< every boundary
  bool has_refused = false;      ///< the positions that cannot be split
  std::optional<int32_t> stages;
  std::optional<std::string> split;
  bool is_json = false;
  bool is_text = false;  ///< the graph

  bool is_planned = false;   ///< plan its pipeline
  bool is_measured = false;  ///< plan from measured costs
  std::optional<int32_t> ranks = std::nullopt;
  int32_t microbatches = 8;
  std::optional<std::string> memory = std::nullopt;
  std::string time_limit = "5s";
  std::optional<std::string> costs_out = std::nullopt;
  std::optional<std::string> plan_out = std::nullopt;

  std::optional<std::string> pipe_out = std::nullopt;   ///< the file to write the stages to
  std::optional<std::string> plan_file = std::nullopt;  ///< with the split of the stages
};

}  // namespace stagecraft::cli
