#include "cli/train/sample.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

#include "stagecraft/stage/random_scope.h"

namespace stagecraft::cli {

std::string sample_text(Trainer& trainer, const std::string& prompt, const SampleOptions& options) {
  std::vector<std::string> texts(static_cast<std::size_t>(options.rows),
                                 prompt.empty() ? "\n" : prompt);
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
    const at::Tensor logits = trainer.predict({ids.to(options.device)}).toTensor().select(1, -1);
    const at::Tensor shares =
        at::softmax(logits.to(at::kCPU, at::kFloat).div(options.temperature), -1);
    const at::Tensor next = at::multinomial(shares, 1);
    for (int32_t r = 0; r < options.rows; ++r) {
      texts[static_cast<std::size_t>(r)] += static_cast<char>(next.const_data_ptr<int64_t>()[r]);
    }
  }
  return texts[0].substr(prompt.empty() ? 1 : prompt.size());
}

}  // namespace stagecraft::cli
