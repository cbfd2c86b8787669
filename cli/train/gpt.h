#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// How a Gpt encodes the position of a token in its row.
enum class Positions : uint8_t {
  kRotary,   ///< queries and keys are turned by their position (RoPE)
  kLearned,  ///< an embedding of the position is added to that of the token
};

/// The shape of a Gpt.
struct GptSizes {
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t context = 64;      ///< tokens in a row, at the most
  int64_t vocabulary = 256;  ///< bytes
  Positions positions = Positions::kRotary;
  /// The head uses the embedding's weight.
  bool is_tied = true;
  double dropout = 0;
  /// The block whose GELU layer is four times as wide as those of other blocks, if there is one.
  std::optional<int64_t> wide_block = std::nullopt;
};

/// The use that a model is captured for.
struct GptUse {
  bool is_training = true;  ///< with dropout
  int64_t max_rows = 64;    ///< the most rows of a microbatch
  /// Operators that gain by it compute in this type; parameters stay as they are.
  std::optional<c10::ScalarType> autocast = std::nullopt;
};

/// A decoder-only transformer: token ids [rows, length] in, logits [rows, length, vocabulary] out,
/// pre-norm blocks with causal attention and a GELU layer four times as wide. It is plain torch::nn
/// and knows nothing of pipelines: it is captured and split at names of modules. Its modules:
/// `embed`, `blocks.0` ..., `head`.
class Gpt {
 public:
  /// Initial weights depend on the sizes and the seed alone. ArgumentError for sizes that are not
  /// positive, heads that do not divide the width (with rotary positions: into even parts), and a
  /// dropout outside [0, 1).
  Gpt(const GptSizes& sizes, uint64_t seed);

  const GptSizes& sizes() const { return sizes_; }
  /// A body that shares the model's tensors.
  StageBody body() const;

  /// The model as a pipe of stages, for rows of up to `sizes().context` tokens. The tied weight is
  /// sent to the stage that reads it, and not copied, so that gradients are bitwise equal to those
  /// of the whole model. Throws as `pipeline` does.
  Pipe cut(const Split& split, const GptUse& use = {}) const;

 private:
  struct Model;

  GptSizes sizes_;
  std::shared_ptr<Model> model_;
};

}  // namespace stagecraft
