// Captures a GPT that knows nothing of pipelines, splits it at names of modules, trains it on two
// ranks and saves it.

#include <cstdio>
#include <vector>

#include <torch/torch.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

constexpr int64_t kWords = 32;
constexpr int64_t kWidth = 32;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("proj", proj);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t b = x.size(0);
    const int64_t s = x.size(1);
    const auto parts =
        qkv(norm1(x)).view({b, s, 3, 4, kWidth / 4}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                           /*is_causal=*/true);
    const auto y = x + proj(mixed.transpose(1, 2).reshape({b, s, kWidth}));
    return y + down(torch::gelu(up(norm2(y))));
  }
  torch::nn::LayerNorm norm1{torch::nn::LayerNormOptions({kWidth})},
      norm2{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear qkv{kWidth, 3 * kWidth}, proj{kWidth, kWidth}, up{kWidth, 4 * kWidth},
      down{4 * kWidth, kWidth};
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  GptImpl() {
    register_module("embed", embed);
    for (int i = 0; i < 4; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = embed(ids);
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head(x);
  }
  torch::nn::Embedding embed{kWords, kWidth};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{kWidth, kWords};
};
TORCH_MODULE(Gpt);

int main() {
  torch::manual_seed(0);
  Gpt model;
  const auto ids = torch::arange(16 * 9).remainder(kWords).view({16, 9});
  const auto input = ids.slice(1, 0, 8);
  const auto target = ids.slice(1, 1, 9);

  // One microbatch is the example. Other microbatches may have a different number of rows.
  const Pipe pipe = stagecraft::pipeline(model, {{input.slice(0, 0, 4)}, {}},
                                         {.points = {{"blocks.2", SplitPoint::kBeginning}}});
  std::printf("%s\n%s\n", pipe.call_text().c_str(), pipe.table().c_str());

  auto loss = [](const at::Tensor& logits, const at::Tensor& words) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), words.flatten());
  };
  Pipeline run(pipe, {.schedule = "1F1B", .loss = loss});
  torch::optim::AdamW optimizer(run.parameters(), torch::optim::AdamWOptions(3e-3));
  for (int step = 0; step <= 40; ++step) {
    optimizer.zero_grad();
    const StepResult result =
        run.step({input}, {}, target, {.microbatches = 3});  // 6, 5 and 5 rows
    optimizer.step();
    if (step % 20 == 0) std::printf("step %2d  loss %.4f\n", step, result.loss().item<double>());
  }
  save_pipe(pipe, "split_gpt.pipe");
  std::printf("loaded: %d stages\n", load_pipe("split_gpt.pipe").num_stages());
  std::remove("split_gpt.pipe");
}
