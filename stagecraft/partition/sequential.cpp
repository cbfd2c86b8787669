#include "stagecraft/partition/sequential.h"

#include <cmath>
#include <numeric>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {

std::vector<std::size_t> balance_layers(const std::vector<int64_t>& bytes, int32_t stages) {
  const std::size_t layers = bytes.size();
  require<ArgumentError>(stages >= 1 && static_cast<std::size_t>(stages) <= layers,
                         "expected 1 to {} stages for {} layers, got {}", layers, layers, stages);
  std::vector<int64_t> before(layers + 1, 0);
  std::partial_sum(bytes.begin(), bytes.end(), before.begin() + 1);
  std::vector<std::size_t> begins = {0};
  for (int32_t k = 1; k < stages; ++k) {
    const double goal = static_cast<double>(before.back()) * k / stages;
    // Each of the remaining stages needs a layer.
    const std::size_t last = layers - static_cast<std::size_t>(stages - k);
    std::size_t best = begins.back() + 1;
    for (std::size_t i = best; i <= last; ++i) {
      const auto miss = [&](std::size_t p) {
        return std::abs(static_cast<double>(before[p]) - goal);
      };
      if (miss(i) < miss(best)) best = i;
    }
    begins.push_back(best);
  }
  return begins;
}

void check_begins(const std::vector<std::size_t>& begins, std::size_t layers) {
  require<ArgumentError>(!begins.empty() && begins.front() == 0,
                         "expected the first stage to begin with layer 0");
  for (std::size_t k = 1; k < begins.size(); ++k) {
    require<ArgumentError>(begins[k] > begins[k - 1] && begins[k] < layers,
                           "stage {}: expected a beginning above {} and below {}, got {}", k,
                           begins[k - 1], layers, begins[k]);
  }
}

at::Tensor get_one_tensor(const Args& args, const Kwargs& kwargs) {
  require<ArgumentError>(args.size() == 1 && args[0].isTensor() && kwargs.empty(),
                         "a stage of a sequential model takes one tensor, got {} arguments",
                         args.size() + kwargs.size());
  return args[0].toTensor();
}

}  // namespace stagecraft::detail
