// Opaque leaves of users that split and merge themselves.

#include "stagecraft/tree/opaque.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

/// A label for each member of the batch.
class Labels : public Opaque {
 public:
  explicit Labels(std::vector<std::string> all) : all_(std::move(all)) {}

  const std::vector<std::string>& all() const { return all_; }
  std::string describe() const override { return "Labels[" + std::to_string(all_.size()) + "]"; }
  std::optional<int64_t> max_chunks() const override { return static_cast<int64_t>(all_.size()); }
  std::vector<c10::intrusive_ptr<Opaque>> split(int64_t chunks) const override {
    const auto size = static_cast<int64_t>(all_.size());
    std::vector<c10::intrusive_ptr<Opaque>> parts;
    auto begin = all_.begin();
    for (int64_t c = 0; c < chunks; ++c) {
      const auto end = begin + size / chunks + (c < size % chunks ? 1 : 0);
      parts.push_back(c10::make_intrusive<Labels>(std::vector<std::string>(begin, end)));
      begin = end;
    }
    return parts;
  }
  c10::intrusive_ptr<Opaque> merge(
      std::span<const c10::intrusive_ptr<Opaque>> chunks) const override {
    std::vector<std::string> merged;
    for (const auto& chunk : chunks) {
      const auto* part = dynamic_cast<const Labels*>(chunk.get());
      if (part == nullptr) return {};
      merged.insert(merged.end(), part->all_.begin(), part->all_.end());
    }
    return c10::make_intrusive<Labels>(std::move(merged));
  }

 private:
  std::vector<std::string> all_;
};

/// Says that it can be split, and returns the wrong number of chunks.
class Broken : public Opaque {
 public:
  std::string describe() const override { return "Broken"; }
  std::optional<int64_t> max_chunks() const override { return 8; }
  std::vector<c10::intrusive_ptr<Opaque>> split(int64_t) const override { return {nullptr}; }
};

/// Has none of the optional functions.
class Plain : public Opaque {
 public:
  std::string describe() const override { return "Plain"; }
};

std::vector<std::string> labels_of(const c10::IValue& leaf) {
  const auto labels = find_opaque<Labels>(leaf);
  return labels ? labels->all() : std::vector<std::string>{"not Labels"};
}

c10::IValue labels(std::vector<std::string> all) {
  return make_opaque(c10::make_intrusive<Labels>(std::move(all)));
}

TEST(OpaqueLeaf, IsSplitLikeTheTensorsBesideItAndMergedAgain) {
  const auto batch =
      tree::dict({{"x", at::arange(5)}, {"labels", labels({"a", "b", "c", "d", "e"})}});
  const auto chunks = split_args_kwargs_into_chunks({batch}, {}, 3);
  ASSERT_EQ(chunks.size(), 3u);
  std::vector<c10::IValue> outputs;
  std::vector<std::vector<std::string>> parts;
  for (const Arguments& chunk : chunks) {
    const auto part = chunk.args[0].toGenericDict();
    parts.push_back(labels_of(part.at("labels")));
    EXPECT_EQ(part.at("x").toTensor().size(0), static_cast<int64_t>(parts.back().size()));
    outputs.push_back(chunk.args[0]);
  }
  EXPECT_THAT(parts,
              testing::ElementsAre(testing::ElementsAre("a", "b"), testing::ElementsAre("c", "d"),
                                   testing::ElementsAre("e")));
  const auto merged = merge_chunks(outputs).toGenericDict();
  EXPECT_THAT(labels_of(merged.at("labels")), testing::ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_TRUE(merged.at("x").toTensor().equal(at::arange(5)));
}

TEST(OpaqueLeaf, LimitsTheNumberOfChunks) {
  EXPECT_EQ(split_args_kwargs_into_chunks({at::zeros({8}), labels({"a", "b", "c"})}, {}, 4).size(),
            3u);
}

TEST(OpaqueLeaf, WithoutSplitIsReplicated) {
  const auto plain = make_opaque(c10::make_intrusive<Plain>());
  const auto chunks = split_args_kwargs_into_chunks({at::zeros({8}), plain}, {}, 4);
  ASSERT_EQ(chunks.size(), 4u);
  for (const Arguments& chunk : chunks) {
    EXPECT_EQ(find_opaque<Plain>(chunk.args[1]).get(), find_opaque<Plain>(plain).get());
  }
  EXPECT_ERROR(
      split_args_kwargs_into_chunks({plain}, {}, 2, {.args_spec = ChunkSpec::tuple({0})}),
      ArgumentError,
      "args[0]: TensorChunkSpec(0) splits tensors and opaque leaves that can be split, got Plain");
  EXPECT_ERROR(merge_chunks(std::vector<c10::IValue>{plain, plain}), MetadataError,
               "chunks[0]: only tensors can be concatenated, got Plain");
}

TEST(OpaqueLeaf, MisuseNamesThePath) {
  EXPECT_ERROR(split_args_kwargs_into_chunks({make_opaque(c10::make_intrusive<Broken>())}, {}, 2),
               ArgumentError, "args[0]: expected 2 chunks from Opaque::split of Broken, got 0");
  EXPECT_ERROR(split_args_kwargs_into_chunks({labels({"a", "b"})}, {}, 2,
                                             {.args_spec = ChunkSpec::tuple({1})}),
               ArgumentError,
               "args[0]: an opaque leaf is split along dimension 0, got TensorChunkSpec(1)");
  EXPECT_ERROR(merge_chunks(std::vector<c10::IValue>{labels({"a"}), 3}), MetadataError,
               "chunks[0]: only tensors can be concatenated, got Labels[1]");
}

}  // namespace
}  // namespace stagecraft
