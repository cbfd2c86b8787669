// Split then merge gives the input back: 2,000 random trees from printed seeds.

#include <random>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "stagecraft/microbatch/merge.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed), batch_(1 + below(9)) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<unsigned>(n)); }

  // A tree and the spec to cut it with.
  std::pair<c10::IValue, ChunkSpec> tree(int depth) {
    const auto kind = depth == 0 ? 0 : below(4);
    if (kind == 0) return leaf();
    std::vector<c10::IValue> values;
    std::vector<ChunkSpec> specs;
    for (int64_t i = below(4); i > 0; --i) {
      auto [value, spec] = tree(depth - 1);
      values.push_back(std::move(value));
      specs.push_back(std::move(spec));
    }
    if (kind == 1) return {tree::tuple(values), ChunkSpec::tuple(specs)};
    if (kind == 2) return {tree::list(values), ChunkSpec::list(specs)};
    std::vector<std::pair<std::string, c10::IValue>> entries;
    std::vector<std::pair<std::string, ChunkSpec>> spec_entries;
    for (std::size_t i = 0; i < values.size(); ++i) {
      entries.emplace_back("k" + std::to_string(i), values[i]);
      spec_entries.emplace_back("k" + std::to_string(i), specs[i]);
    }
    std::shuffle(spec_entries.begin(), spec_entries.end(), random_);
    return {tree::dict(entries), ChunkSpec::dict(spec_entries)};
  }

 private:
  std::pair<c10::IValue, ChunkSpec> leaf() {
    switch (below(8)) {
      case 0:
        return {c10::IValue(), Replicate{}};
      case 1:
        return {below(100), Replicate{}};
      case 2:
        return {"text", Replicate{}};
      case 3:
        return {tensor(below(3)), Replicate{}};
      default: {
        const int64_t dims = 1 + below(3);
        const int64_t dim = below(2 * dims) - dims;
        auto value = tensor(dims);
        auto sizes = value.sizes().vec();
        sizes[static_cast<std::size_t>(dim < 0 ? dim + dims : dim)] = batch_;
        return {at::arange(numel(sizes)).view(sizes), dim};
      }
    }
  }

  static int64_t numel(const std::vector<int64_t>& sizes) {
    int64_t product = 1;
    for (const auto size : sizes) product *= size;
    return product;
  }

  at::Tensor tensor(int64_t dims) {
    std::vector<int64_t> sizes;
    for (int64_t d = 0; d < dims; ++d) sizes.push_back(1 + below(4));
    return at::arange(numel(sizes)).view(sizes);
  }

  std::mt19937 random_;
  int64_t batch_;
};

TEST(RandomTrees, SplitThenMergeGivesTheInputBack) {
  int several = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Generator generator(seed);
    const auto [value, spec] = generator.tree(4);
    const int64_t chunks = 1 + generator.below(6);
    const bool masked = generator.below(4) == 0;
    const auto parts = split_args_kwargs_into_chunks(
        {value}, {{"kw", value}}, chunks,
        {ChunkSpec::tuple({spec}), ChunkSpec::dict({{"kw", spec}}), masked});
    std::vector<c10::IValue> args;
    std::vector<c10::IValue> kwargs;
    for (const auto& part : parts) {
      args.push_back(part.args[0]);
      kwargs.push_back(part.kwargs.get("kw"));
    }
    ASSERT_TRUE(tree::equal(merge_chunks(args, spec, {masked}), value)) << describe(value);
    ASSERT_TRUE(tree::equal(merge_chunks(kwargs, spec, {masked}), value)) << describe(value);
    several += parts.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(several, 1000) << "the trees were too simple to show anything";
}

}  // namespace
}  // namespace stagecraft
