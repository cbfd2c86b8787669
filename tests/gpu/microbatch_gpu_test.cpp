#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/base/error.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using MicrobatchGpu = GpuTest;

TEST_F(MicrobatchGpu, SplitThenMergeStaysOnTheDevice) {
  const auto x = at::arange(24, at::TensorOptions().device(gpu_)).view({8, 3});
  const auto mask =
      create_block_mask([](const at::Tensor& b, const at::Tensor&, const at::Tensor& q,
                           const at::Tensor& kv) { return q.sub(kv).le(b); },
                        8, 1, 32, 32, 8, gpu_);
  const auto parts = split_args_kwargs_into_chunks({x}, {{"mask", make_opaque(mask)}}, 3);
  std::vector<c10::IValue> chunks;
  std::vector<c10::IValue> losses;
  for (const auto& part : parts) {
    chunks.push_back(part.args[0]);
    losses.emplace_back(part.args[0].toTensor().sum());
    EXPECT_TRUE(part.args[0].toTensor().is_alias_of(x));
    EXPECT_TRUE(find_opaque<BlockMask>(part.kwargs.get("mask"))->kv_indices().is_cuda());
  }
  EXPECT_TRUE(at::equal(merge_chunks(chunks).toTensor(), x));
  const auto loss = merge_chunks(losses, ChunkSpec(LossReducer{})).toTensor();
  EXPECT_TRUE(loss.is_cuda());
  EXPECT_EQ(loss.item<float>(), 276);
  EXPECT_EQ(describe(x), "Tensor[8, 3] int64 cuda:0");
}

TEST_F(MicrobatchGpu, ChunksOnDifferentDevicesAreNamed) {
  const std::vector<c10::IValue> chunks = {at::ones({2}).to(gpu_), at::ones({2})};
  EXPECT_ERROR(merge_chunks(chunks), MetadataError,
               "chunks[1]: cannot concatenate Tensor[2] float32 along 0 with Tensor[2] float32 "
               "cuda:0 of chunk 0");
}

}  // namespace
}  // namespace stagecraft
