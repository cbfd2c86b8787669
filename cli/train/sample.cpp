#include "cli/train/sample.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

#include "stagecraft/stage/random_scope.h"

namespace stagecraft::cli {

std::string sample_text(Trainer& trainer, const Task& task, const std::string& prompt,
                        const SampleOptions& options) {
  std::string start = prompt.empty() ? "\n" : prompt;
  if (start.size() < static_cast<std::size_t>(task.least_length)) {
    start.insert(0, static_cast<std::size_t>(task.least_length) - start.size(), '\n');
  }
  const std::size_t before = start.size();
  std::vector<std::string> texts(static_cast<std::size_t>(options.rows), start);
  const RandomScope random(mix_seed(options.seed, 0, 0, kWholeModel));
  for (int64_t i = 0; i < options.length; ++i) {
    const int64_t length =
        std::min<int64_t>(static_cast<int64_t>(texts[0].size()), options.context);
    at::Tensor ids = at::empty({options.rows, length}, at::kLong);
    for (int32_t r = 0; r < options.rows; ++r) {
      const std::string& text = texts[static_cast<std::size_t>(r)];
      const std::size_t from = text.size() - static_cast<std::size_t>(length);
      for (int64_t k = 0; k < length; ++k) {
        ids.mutable_data_ptr<int64_t>()[r * length + k] =
            static_cast<unsigned char>(text[from + static_cast<std::size_t>(k)]);
      }
    }
    const NamedTensors rows = {{"ids", ids.to(options.device)}};
    std::vector<at::Tensor> parts;
    for (const c10::IValue& output : trainer.predict_each(task.arguments(rows))) {
      parts.push_back(task.logits(output).select(1, -1));
    }
    const at::Tensor logits = at::cat(parts);
    const at::Tensor shares =
        at::softmax(logits.to(at::kCPU, at::kFloat).div(options.temperature), -1);
    const at::Tensor next = at::multinomial(shares, 1);
    for (int32_t r = 0; r < options.rows; ++r) {
      texts[static_cast<std::size_t>(r)] += static_cast<char>(next.const_data_ptr<int64_t>()[r]);
    }
  }
  return texts[0].substr(before);
}

}  // namespace stagecraft::cli
