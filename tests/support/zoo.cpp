#include "tests/support/zoo.h"

#include <cmath>
#include <memory>
#include <utility>

#include <torch/nn/functional/upsampling.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

#include "stagecraft/stage/callable.h"

namespace stagecraft::zoo {

namespace {

using at::Tensor;
using torch::nn::Linear;
using torch::nn::Module;
using torch::nn::ModuleList;

constexpr int64_t kWidth = 16;
constexpr int64_t kLength = 6;
constexpr int64_t kVocabulary = 23;

Tensor rows_of(std::vector<int64_t> shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return torch::arange(count, torch::kFloat).mul(0.37).sin().view(shape);
}

Tensor ids_of(int64_t rows, int64_t offset = 0) {
  return torch::arange(offset, offset + rows * kLength)
      .mul(7)
      .remainder(kVocabulary)
      .view({rows, kLength});
}

template <typename M>
ZooModel make(std::string name, std::shared_ptr<M> module, std::function<Arguments(int64_t)> inputs,
              std::vector<std::string> names = {}) {
  return {.name = std::move(name),
          .body = stage_body(std::move(module), std::move(names)),
          .inputs = std::move(inputs)};
}

std::function<Arguments(int64_t)> vectors() {
  return [](int64_t rows) { return Arguments{{rows_of({rows, kWidth})}, {}}; };
}

std::function<Arguments(int64_t)> ids() {
  return [](int64_t rows) { return Arguments{{ids_of(rows)}, {}}; };
}

// Attention ---------------------------------------------------------------------------------------

struct AttentionImpl : Module {
  explicit AttentionImpl(int64_t h)
      : heads(h),
        q(register_module("q", Linear(kWidth, kWidth))),
        kv(register_module("kv", Linear(kWidth, 2 * kWidth))),
        proj(register_module("proj", Linear(kWidth, kWidth))) {}

  Tensor forward(const Tensor& x, const Tensor& memory, const Tensor& mask, bool is_causal) {
    const int64_t b = x.size(0);
    auto split = [&](const Tensor& t) { return t.view({b, t.size(1), heads, -1}).transpose(1, 2); };
    const std::vector<Tensor> keys = kv(memory).chunk(2, -1);
    std::optional<Tensor> given;
    if (mask.defined()) given = mask;
    const Tensor y = at::scaled_dot_product_attention(split(q(x)), split(keys[0]), split(keys[1]),
                                                      given, 0.0, is_causal);
    return proj(y.transpose(1, 2).reshape({b, x.size(1), kWidth}));
  }

  int64_t heads;
  Linear q, kv, proj;
};
TORCH_MODULE(Attention);

struct BlockImpl : Module {
  BlockImpl()
      : ln1(register_module("ln1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        attn(register_module("attn", Attention(2))),
        ln2(register_module("ln2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        fc(register_module("fc", Linear(kWidth, 2 * kWidth))),
        proj(register_module("proj", Linear(2 * kWidth, kWidth))) {}

  Tensor forward(const Tensor& x, const Tensor& mask, bool is_causal) {
    const Tensor normal = ln1(x);
    const Tensor y = x + attn(normal, normal, mask, is_causal);
    return y + proj(at::gelu(fc(ln2(y))));
  }

  torch::nn::LayerNorm ln1;
  Attention attn;
  torch::nn::LayerNorm ln2;
  Linear fc, proj;
};
TORCH_MODULE(Block);

// Models ------------------------------------------------------------------------------------------

struct Mlp : Module {
  Mlp() {
    for (int i = 0; i < 4; ++i) layers->push_back(Linear(kWidth, kWidth));
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < layers->size(); ++i)
      x = layers->ptr<torch::nn::LinearImpl>(i)->forward(x).relu();
    return x;
  }
  ModuleList layers;
};

struct ResidualBlockImpl : Module {
  ResidualBlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", Linear(kWidth, 2 * kWidth))),
        down(register_module("down", Linear(2 * kWidth, kWidth))) {}
  Tensor forward(const Tensor& x) { return x + down(at::silu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  Linear up, down;
};
TORCH_MODULE(ResidualBlock);

struct ResidualMlp : Module {
  ResidualMlp() {
    for (int i = 0; i < 4; ++i) blocks->push_back(ResidualBlock());
    register_module("blocks", blocks);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < blocks->size(); ++i)
      x = blocks->ptr<ResidualBlockImpl>(i)->forward(x);
    return x;
  }
  ModuleList blocks;
};

struct TiedHead : Module {
  explicit TiedHead(const Tensor& w) : weight(register_parameter("weight", w)) {}
  Tensor weight;
};

struct Gpt : Module {
  Gpt()
      : tok(register_module("tok", torch::nn::Embedding(kVocabulary, kWidth))),
        pos(register_module("pos", torch::nn::Embedding(kLength, kWidth))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        head(register_module("head", std::make_shared<TiedHead>(tok->weight))) {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = tok(ids) + pos(torch::arange(ids.size(1)));
    for (std::size_t i = 0; i < blocks->size(); ++i)
      x = blocks->ptr<BlockImpl>(i)->forward(x, {}, true);
    return norm(x).matmul(head->weight.t());
  }
  torch::nn::Embedding tok, pos;
  torch::nn::LayerNorm norm;
  std::shared_ptr<TiedHead> head;
  ModuleList blocks;
};

struct RmsNormImpl : Module {
  RmsNormImpl() : weight(register_parameter("weight", torch::ones({kWidth}))) {}
  Tensor forward(const Tensor& x) {
    return x * at::rsqrt(x.pow(2).mean({-1}, true) + 1e-6) * weight;
  }
  Tensor weight;
};
TORCH_MODULE(RmsNorm);

Linear no_bias(int64_t in, int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct LlamaBlockImpl : Module {
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kGroups = 2;
  static constexpr int64_t kHead = kWidth / kHeads;

  LlamaBlockImpl()
      : norm1(register_module("norm1", RmsNorm())),
        norm2(register_module("norm2", RmsNorm())),
        q(register_module("q", no_bias(kWidth, kWidth))),
        k(register_module("k", no_bias(kWidth, kGroups * kHead))),
        v(register_module("v", no_bias(kWidth, kGroups * kHead))),
        o(register_module("o", no_bias(kWidth, kWidth))),
        gate(register_module("gate", no_bias(kWidth, 2 * kWidth))),
        up(register_module("up", no_bias(kWidth, 2 * kWidth))),
        down(register_module("down", no_bias(2 * kWidth, kWidth))) {}

  static Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    const Tensor left = x.slice(-1, 0, kHead / 2);
    const Tensor right = x.slice(-1, kHead / 2);
    return x * cos + at::cat({-right, left}, -1) * sin;
  }

  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin) {
    const int64_t b = x.size(0);
    const int64_t s = x.size(1);
    const Tensor normal = norm1(x);
    const Tensor query = rotated(q(normal).view({b, s, kHeads, kHead}).transpose(1, 2), cos, sin);
    const Tensor key = rotated(k(normal).view({b, s, kGroups, kHead}).transpose(1, 2), cos, sin);
    const Tensor value = v(normal).view({b, s, kGroups, kHead}).transpose(1, 2);
    const int64_t share = kHeads / kGroups;
    const Tensor scores = query.matmul(key.repeat_interleave(share, 1).transpose(-2, -1)) /
                          std::sqrt(static_cast<double>(kHead));
    const Tensor mask = torch::full({s, s}, -1e9).triu(1);
    const Tensor y = at::softmax(scores + mask, -1).matmul(value.repeat_interleave(share, 1));
    const Tensor z = x + o(y.transpose(1, 2).reshape({b, s, kWidth}));
    const Tensor again = norm2(z);
    return z + down(at::silu(gate(again)) * up(again));
  }

  RmsNorm norm1, norm2;
  Linear q, k, v, o, gate, up, down;
};
TORCH_MODULE(LlamaBlock);

struct Llama : Module {
  Llama()
      : tok(register_module("tok", torch::nn::Embedding(kVocabulary, kWidth))),
        norm(register_module("norm", RmsNorm())),
        head(register_module("head", no_bias(kWidth, kVocabulary))) {
    for (int i = 0; i < 3; ++i) layers->push_back(LlamaBlock());
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& ids) {
    constexpr int64_t kHead = LlamaBlockImpl::kHead;
    const Tensor rate =
        at::pow(10000.0, torch::arange(0, kHead, 2, torch::kFloat) / -static_cast<double>(kHead));
    const Tensor angle = at::outer(torch::arange(ids.size(1), torch::kFloat), rate);
    const Tensor both = at::cat({angle, angle}, -1);
    const Tensor cos = both.cos();
    const Tensor sin = both.sin();
    Tensor x = tok(ids);
    for (std::size_t i = 0; i < layers->size(); ++i)
      x = layers->ptr<LlamaBlockImpl>(i)->forward(x, cos, sin);
    return head(norm(x));
  }
  torch::nn::Embedding tok;
  RmsNorm norm;
  Linear head;
  ModuleList layers;
};

struct Bert : Module {
  Bert()
      : tok(register_module("tok", torch::nn::Embedding(kVocabulary, kWidth))),
        pooler(register_module("pooler", Linear(kWidth, kWidth))) {
    for (int i = 0; i < 3; ++i) layers->push_back(Block());
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& ids, const Tensor& mask) {
    const Tensor bias = (1.0 - mask.to(torch::kFloat)).mul(-1e9).unsqueeze(1).unsqueeze(1);
    Tensor x = tok(ids);
    for (std::size_t i = 0; i < layers->size(); ++i)
      x = layers->ptr<BlockImpl>(i)->forward(x, bias, false);
    return pooler(x.select(1, 0)).tanh();
  }
  torch::nn::Embedding tok;
  Linear pooler;
  ModuleList layers;
};

struct DecoderLayerImpl : Module {
  DecoderLayerImpl()
      : self(register_module("self", Attention(2))),
        cross(register_module("cross", Attention(2))),
        fc(register_module("fc", Linear(kWidth, kWidth))) {}
  Tensor forward(const Tensor& x, const Tensor& memory) {
    const Tensor y = x + self(x, x, Tensor(), true);
    const Tensor z = y + cross(y, memory, Tensor(), false);
    return z + fc(z).relu();
  }
  Attention self, cross;
  Linear fc;
};
TORCH_MODULE(DecoderLayer);

struct T5 : Module {
  T5()
      : tok(register_module("tok", torch::nn::Embedding(kVocabulary, kWidth))),
        head(register_module("head", Linear(kWidth, kVocabulary))) {
    for (int i = 0; i < 2; ++i) encoder->push_back(Block());
    for (int i = 0; i < 3; ++i) decoder->push_back(DecoderLayer());
    register_module("encoder", encoder);
    register_module("decoder", decoder);
  }
  Tensor forward(const Tensor& source, const Tensor& target) {
    Tensor memory = tok(source);
    for (std::size_t i = 0; i < encoder->size(); ++i)
      memory = encoder->ptr<BlockImpl>(i)->forward(memory, {}, false);
    Tensor x = tok(target);
    for (std::size_t i = 0; i < decoder->size(); ++i)
      x = decoder->ptr<DecoderLayerImpl>(i)->forward(x, memory);
    return head(x);
  }
  torch::nn::Embedding tok;
  Linear head;
  ModuleList encoder, decoder;
};

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).stride(stride));
}

struct ConvNet : Module {
  ConvNet() : head(register_module("head", Linear(8, 5))) {
    const std::vector<int64_t> channels = {3, 4, 4, 8, 8};
    for (std::size_t i = 0; i + 1 < channels.size(); ++i) {
      convs->push_back(conv(channels[i], channels[i + 1]));
      norms->push_back(torch::nn::BatchNorm2d(channels[i + 1]));
    }
    register_module("convs", convs);
    register_module("norms", norms);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < convs->size(); ++i) {
      x = convs->ptr<torch::nn::Conv2dImpl>(i)->forward(x);
      x = norms->ptr<torch::nn::BatchNorm2dImpl>(i)->forward(x).relu_();
      if (i == 1) x = at::max_pool2d(x, {2, 2});
    }
    return head(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  ModuleList convs, norms;
  Linear head;
};

struct UNet : Module {
  UNet() {
    for (const auto& [name, in, out, stride] :
         std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>>{{"down1", 3, 4, 1},
                                                                         {"down2", 4, 8, 2},
                                                                         {"down3", 8, 8, 2},
                                                                         {"up2", 16, 8, 1},
                                                                         {"up1", 12, 4, 1},
                                                                         {"last", 4, 3, 1}}) {
      layers.emplace_back(register_module(name, conv(in, out, stride)));
    }
  }
  static Tensor larger(const Tensor& x) {
    namespace F = torch::nn::functional;
    return F::interpolate(
        x,
        F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest));
  }
  Tensor forward(const Tensor& x) {
    const Tensor a = layers[0](x).relu();
    const Tensor b = layers[1](a).relu();
    const Tensor c = layers[2](b).relu();
    const Tensor d = layers[3](at::cat({larger(c), b}, 1)).relu();
    const Tensor e = layers[4](at::cat({larger(d), a}, 1)).relu();
    return layers[5](e);
  }
  std::vector<torch::nn::Conv2d> layers;
};

struct Lstm : Module {
  Lstm()
      : first(register_module(
            "first", torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, kWidth).batch_first(true)))),
        second(register_module(
            "second", torch::nn::LSTM(
                          torch::nn::LSTMOptions(kWidth, kWidth).num_layers(2).batch_first(true)))),
        head(register_module("head", Linear(kWidth, 4))) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = std::get<0>(first->forward(x));
    const Tensor z = std::get<0>(second->forward(y.tanh()));
    return head(z.select(1, -1));
  }
  torch::nn::LSTM first, second;
  Linear head;
};

struct MoeLayerImpl : Module {
  static constexpr int64_t kExperts = 4;
  MoeLayerImpl()
      : router(register_module("router", Linear(kWidth, kExperts))),
        up(register_parameter("up", torch::randn({kExperts, kWidth, kWidth}) * 0.2)),
        down(register_parameter("down", torch::randn({kExperts, kWidth, kWidth}) * 0.2)) {}
  Tensor forward(const Tensor& x) {
    const auto [weights, chosen] = at::softmax(router(x), -1).topk(2, -1);
    const Tensor gates =
        torch::zeros({x.size(0), kExperts}).scatter(1, chosen, weights / weights.sum(-1, true));
    const Tensor hidden = at::einsum("bi,eio->ebo", {x, up}).relu();
    const Tensor each = at::einsum("ebi,eio->beo", {hidden, down});
    return x + (each * gates.unsqueeze(-1)).sum(1);
  }
  Linear router;
  Tensor up, down;
};
TORCH_MODULE(MoeLayer);

struct Experts : Module {
  Experts() {
    for (int i = 0; i < 4; ++i) layers->push_back(MoeLayer());
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < layers->size(); ++i) x = layers->ptr<MoeLayerImpl>(i)->forward(x);
    return x;
  }
  ModuleList layers;
};

struct WithDropout : Module {
  WithDropout() {
    for (int i = 0; i < 4; ++i) layers->push_back(Linear(kWidth, kWidth));
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = at::dropout(layers->ptr<torch::nn::LinearImpl>(i)->forward(x).tanh(), 0.3, is_training());
    }
    return x;
  }
  ModuleList layers;
};

std::function<Arguments(int64_t)> pictures() {
  return [](int64_t rows) { return Arguments{{rows_of({rows, 3, 8, 8})}, {}}; };
}

template <typename M>
std::shared_ptr<M> seeded() {
  torch::manual_seed(5);
  return std::make_shared<M>();
}

}  // namespace

ZooModel mlp() {
  return make("mlp", seeded<Mlp>(), vectors());
}
ZooModel residual_mlp() {
  return make("residual_mlp", seeded<ResidualMlp>(), vectors());
}

ZooModel gpt() {
  ZooModel model = make("gpt", seeded<Gpt>(), ids());
  model.regroups = true;
  return model;
}

ZooModel llama() {
  return make("llama", seeded<Llama>(), ids());
}

ZooModel bert() {
  return make("bert", seeded<Bert>(),
              [](int64_t rows) {
                return Arguments{{ids_of(rows)}, {{"mask", ids_of(rows, 3).remainder(5).ne(0)}}};
              },
              {"ids", "mask"});
}

ZooModel t5() {
  ZooModel model = make("t5", seeded<T5>(), [](int64_t rows) {
    return Arguments{{ids_of(rows), ids_of(rows, 11)}, {}};
  });
  model.regroups = true;
  return model;
}

ZooModel conv_net() {
  return make("conv_net", seeded<ConvNet>(), pictures());
}
ZooModel unet() {
  return make("unet", seeded<UNet>(), pictures());
}

ZooModel lstm() {
  return make("lstm", seeded<Lstm>(), [](int64_t rows) {
    return Arguments{{rows_of({rows, kLength, kWidth})}, {}};
  });
}

ZooModel experts() {
  return make("experts", seeded<Experts>(), vectors());
}

ZooModel with_dropout() {
  ZooModel model = make("with_dropout", seeded<WithDropout>(), vectors());
  model.is_random = true;
  return model;
}

std::vector<ZooModel> all() {
  return {mlp(),      residual_mlp(), gpt(),  llama(),   bert(),        t5(),
          conv_net(), unet(),         lstm(), experts(), with_dropout()};
}

}  // namespace stagecraft::zoo
