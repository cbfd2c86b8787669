#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

/// Small models of the kinds that people cut: written as anybody would write them for libtorch,
/// with nothing of pipelines in them.
namespace stagecraft::zoo {

struct ZooModel {
  std::string name;
  StageBody body;
  /// Arguments with `rows` rows. The output is a tensor.
  std::function<Arguments(int64_t rows)> inputs;
  /// A cut regroups sums of gradients: a value or weight that several stages read.
  bool regroups = false;
  bool is_random = false;
};

ZooModel mlp();
ZooModel residual_mlp();
ZooModel gpt();       ///< tied embeddings
ZooModel llama();     ///< rotary embedding, grouped heads, RMS norm, SwiGLU
ZooModel bert();      ///< "mask" by name
ZooModel t5();        ///< every layer of the decoder reads what the encoder gives
ZooModel conv_net();  ///< batch norm
ZooModel unet();
ZooModel lstm();
ZooModel experts();  ///< a mixture with top-2 routing
ZooModel with_dropout();

std::vector<ZooModel> all();

}  // namespace stagecraft::zoo
