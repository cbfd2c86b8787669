#include "cli/train/gpt.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unbind.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "stagecraft/base/check.h"
#include "stagecraft/stage/random_scope.h"

namespace stagecraft {

namespace {

using at::Tensor;

/// Rotates pairs of neighbouring elements of the last dimension by an angle that grows with the
/// position. `turn` has cosine and sine, [2, context, pairs].
Tensor rotate(const Tensor& x, const Tensor& turn) {
  const Tensor now = turn.slice(1, 0, x.size(2));
  const Tensor cosine = now.select(0, 0);
  const Tensor sine = now.select(0, 1);
  // unbind instead of select: the backward of each select fills a tensor of the size of its input
  // with zeros.
  const std::vector<Tensor> pairs = at::unbind(x.unflatten(-1, {-1, 2}), -1);
  const Tensor& a = pairs[0];
  const Tensor& b = pairs[1];
  return at::stack({a * cosine - b * sine, a * sine + b * cosine}, -1).flatten(-2);
}

Tensor make_turn(int64_t context, int64_t head_width) {
  const Tensor exponents =
      at::arange(0, head_width, 2, at::kFloat) / static_cast<double>(head_width);
  const Tensor speeds = exponents.mul(-std::log(10000.0)).exp();
  const Tensor angles = at::outer(at::arange(context, at::kFloat), speeds);
  return at::stack({angles.cos(), angles.sin()});
}

/// A linear layer as one operator. torch::nn::Linear calls two, the second in place.
Tensor project(const torch::nn::Linear& layer, const Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

Tensor drop(const Tensor& x, double share, bool is_training) {
  return share > 0 && is_training ? at::dropout(x, share, true) : x;
}

/// Enables autocast during its lifetime.
class AutocastRegion {
 public:
  AutocastRegion(c10::ScalarType dtype, c10::DeviceType device)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::increment_nesting();
  }
  ~AutocastRegion() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
  }
  AutocastRegion(const AutocastRegion&) = delete;
  AutocastRegion& operator=(const AutocastRegion&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType dtype_;
};

struct Embed : torch::nn::Module {
  explicit Embed(const GptSizes& own) : sizes(own) {
    register_module("tokens", tokens = torch::nn::Embedding(sizes.vocabulary, sizes.width));
    if (sizes.positions == Positions::kLearned) {
      places = register_parameter("positions", at::zeros({sizes.context, sizes.width}));
    }
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = tokens(ids);
    if (places.defined()) x = x + places.slice(0, 0, ids.size(1));
    return drop(x, sizes.dropout, is_training());
  }
  GptSizes sizes;
  torch::nn::Embedding tokens = nullptr;
  Tensor places;
};

struct Block : torch::nn::Module {
  Block(const GptSizes& own, Tensor own_turn, bool is_wide)
      : sizes(own), turn(std::move(own_turn)) {
    const int64_t w = sizes.width;
    const int64_t inner = (is_wide ? 16 : 4) * w;
    register_module("norm1", norm1 = torch::nn::LayerNorm(torch::nn::LayerNormOptions({w})));
    register_module("qkv", qkv = torch::nn::Linear(w, 3 * w));
    register_module("proj", proj = torch::nn::Linear(w, w));
    register_module("norm2", norm2 = torch::nn::LayerNorm(torch::nn::LayerNormOptions({w})));
    register_module("up", up = torch::nn::Linear(w, inner));
    register_module("down", down = torch::nn::Linear(inner, w));
  }
  Tensor attend(const Tensor& x) {
    const std::vector<Tensor> parts =
        at::unbind(project(qkv, x).unflatten(-1, {3, sizes.heads, -1}).permute({2, 0, 3, 1, 4}));
    Tensor q = parts[0];
    Tensor k = parts[1];
    if (turn.defined()) {
      q = rotate(q, turn);
      k = rotate(k, turn);
    }
    const Tensor mixed = at::scaled_dot_product_attention(
        q, k, parts[2], {}, is_training() ? sizes.dropout : 0.0, /*is_causal=*/true);
    return project(proj, mixed.transpose(1, 2).flatten(2));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = x + drop(attend(norm1(x)), sizes.dropout, is_training());
    return y + drop(project(down, at::gelu(project(up, norm2(y)))), sizes.dropout, is_training());
  }
  GptSizes sizes;
  Tensor turn;
  torch::nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  torch::nn::Linear qkv = nullptr, proj = nullptr, up = nullptr, down = nullptr;
};

struct Head : torch::nn::Module {
  Head(const GptSizes& sizes, Tensor shared) : tied(std::move(shared)) {
    register_module("norm",
                    norm = torch::nn::LayerNorm(torch::nn::LayerNormOptions({sizes.width})));
    if (!tied.defined()) {
      const auto options = torch::nn::LinearOptions(sizes.width, sizes.vocabulary).bias(false);
      register_module("proj", proj = torch::nn::Linear(options));
    }
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = norm(x);
    return at::linear(y, tied.defined() ? tied : proj->weight);
  }
  Tensor tied;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear proj = nullptr;
};

void check(const GptSizes& sizes) {
  for (const auto& [what, size] : {std::pair("layers", sizes.layers),
                                   {"a width", sizes.width},
                                   {"heads", sizes.heads},
                                   {"a context", sizes.context},
                                   {"a vocabulary", sizes.vocabulary}}) {
    require<ArgumentError>(size >= 1, "expected {} of at least 1, got {}", what, size);
  }
  require<ArgumentError>(sizes.width % sizes.heads == 0,
                         "expected a width that {} heads divide, got {}", sizes.heads, sizes.width);
  require<ArgumentError>(
      sizes.positions != Positions::kRotary || sizes.width / sizes.heads % 2 == 0,
      "rotary positions turn pairs: expected an even width of each head, got {}",
      sizes.width / sizes.heads);
  require<ArgumentError>(sizes.dropout >= 0 && sizes.dropout < 1,
                         "expected a dropout from 0 to below 1, got {}", sizes.dropout);
}

}  // namespace

struct Gpt::Model : torch::nn::Module {
  explicit Model(const GptSizes& sizes) {
    Tensor turn;
    if (sizes.positions == Positions::kRotary) {
      turn = register_buffer("turn", make_turn(sizes.context, sizes.width / sizes.heads));
    }
    embed = register_module("embed", std::make_shared<Embed>(sizes));
    register_module("blocks", blocks);
    for (int64_t i = 0; i < sizes.layers; ++i) {
      blocks->push_back(std::make_shared<Block>(sizes, turn, i == sizes.wide_block));
    }
    const Tensor tied = sizes.is_tied ? embed->tokens->weight : Tensor();
    head = register_module("head", std::make_shared<Head>(sizes, tied));
    initialise(sizes);
  }

  /// Initialises weights from a normal distribution with standard deviation 0.02. For layers that
  /// write into the residual stream it is divided by the square root of their number.
  void initialise(const GptSizes& sizes) {
    const torch::NoGradGuard no_grad;
    const double into_stream = 0.02 / std::sqrt(2.0 * static_cast<double>(sizes.layers));
    for (const auto& item : named_parameters()) {
      const std::string& name = item.key();
      const Tensor& tensor = item.value();
      if (name.ends_with("bias")) {
        tensor.zero_();
      } else if (tensor.dim() == 1) {
        tensor.fill_(1);
      } else {
        const bool is_last = name.ends_with("proj.weight") && !name.starts_with("head");
        tensor.normal_(0, is_last || name.ends_with("down.weight") ? into_stream : 0.02);
      }
    }
  }

  Tensor forward(const Tensor& ids) {
    Tensor x = embed->forward(ids);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head->forward(x);
  }

  std::shared_ptr<Embed> embed;
  torch::nn::ModuleList blocks;
  std::shared_ptr<Head> head;
};

Gpt::Gpt(const GptSizes& sizes, uint64_t seed) : sizes_(sizes) {
  check(sizes);
  const RandomScope random(mix_seed(seed, 0, 0, kWholeModel));
  model_ = std::make_shared<Model>(sizes);
}

StageBody Gpt::body() const {
  return stage_body(model_);
}

Pipe Gpt::cut(const Split& split, const GptUse& use) const {
  model_->train(use.is_training);
  const int64_t length = std::min<int64_t>(sizes_.context, 3);
  const Tensor ids = at::arange(2 * length).remainder(sizes_.vocabulary).view({2, length});
  PipeOptions options;
  options.capture.sizes = {
      {.name = "B", .places = {{"args[0]", 0}}, .probe = std::max<int64_t>(use.max_rows, 7)}};
  if (sizes_.context > length) {
    options.capture.sizes.push_back(
        {.name = "S", .places = {{"args[0]", 1}}, .probe = sizes_.context});
  }
  options.sharing.by_default = SharedParameter::kTransmit;
  StageBody whole = body();
  if (use.autocast) {
    whole.forward = [inner = std::move(whole.forward), dtype = *use.autocast](
                        const Args& args, const Kwargs& kwargs) {
      const AutocastRegion region(dtype, c10::kCPU);
      return inner(args, kwargs);
    };
  }
  return pipeline(whole, {{ids}, {}}, split, options);
}

}  // namespace stagecraft
