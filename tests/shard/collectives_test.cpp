// AllGather and ReduceScatter, on threads.

#include <chrono>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/shard/all_gather.h"
#include "stagecraft/shard/reduce_scatter.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/transport/local/local_world.h"

namespace stagecraft {
namespace {

constexpr auto kWait = std::chrono::seconds(20);

ShardGroup group_of(const Transport& transport) {
  ShardGroup group{.members = {}, .own = transport.rank().value()};
  for (Rank r(0); r.value() < transport.num_ranks(); ++r) group.members.push_back(r);
  return group;
}

TransferId id_of(Direction direction) {
  return {1, direction, StageId(0), StageId(0), MicrobatchId(0)};
}

at::Tensor grad_of(int64_t replica, int64_t parameter, int64_t numel, at::ScalarType type) {
  const RandomScope random(static_cast<uint64_t>(100 * replica + parameter));
  return at::randn({numel}, at::kFloat).to(type);
}

TEST(ShardCollectives, AllGatherHasThePiecesByMember) {
  for (const int64_t chunk_bytes : {int64_t{64}, int64_t{1} << 20U}) {
    for (const int32_t ranks : {2, 3, 4}) {
      LocalWorld world(ranks);
      world.run([&](Transport& transport) {
        const int64_t own = transport.rank().value();
        const at::Tensor piece = at::arange(1000 * own, 1000 * own + 512).to(at::kFloat);
        at::Tensor whole = at::full({512 * ranks}, -1.0);
        whole.narrow(0, 512 * own, 512).copy_(piece);
        AllGather gather(transport, group_of(transport), id_of(Direction::kWeights), whole, piece,
                         chunk_bytes);
        gather.poll();
        gather.wait(Deadline::after(kWait));
        EXPECT_TRUE(gather.is_done());
        for (int64_t r = 0; r < ranks; ++r) {
          EXPECT_TRUE(at::equal(whole.narrow(0, 512 * r, 512),
                                at::arange(1000 * r, 1000 * r + 512).to(at::kFloat)));
        }
        transport.barrier(Deadline::after(kWait));
      });
    }
  }
}

// As on a device: chunks are placed between computations only as long as others have to be posted.
TEST(ShardCollectives, AllGatherCanPlaceChunksWhenTheyAreUsed) {
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    constexpr int64_t kElements = 512;
    constexpr int64_t kChunks = 8;
    const int64_t other = 1 - transport.rank().value();
    const at::Tensor piece = at::full({kElements}, transport.rank().value() + 1.0);
    const at::Tensor whole = at::zeros({2 * kElements});
    const at::Tensor theirs = whole.narrow(0, other * kElements, kElements);
    const auto num_placed = [&] { return theirs.count_nonzero().item<int64_t>(); };
    AllGather gather(transport, group_of(transport), id_of(Direction::kWeights), whole, piece,
                     static_cast<int64_t>(piece.nbytes()) / kChunks, /*places_late=*/true);
    constexpr int64_t kEarly = (kChunks - kShardWindow) * kElements / kChunks;
    const Deadline deadline = Deadline::after(kWait);
    while (num_placed() < kEarly && !deadline.has_passed()) gather.advance();
    transport.barrier(deadline);  // both have posted all
    gather.advance();
    EXPECT_EQ(num_placed(), kEarly);
    EXPECT_FALSE(gather.is_done());
    gather.wait(deadline);
    EXPECT_TRUE(at::equal(theirs, at::full({kElements}, static_cast<double>(other) + 1)));
    transport.barrier(deadline);
  });
}

// The sums of a loop over the replicas; a half type is summed in float32.
TEST(ShardCollectives, ReduceScatterAddsInTheOrderOfTheMembers) {
  const std::vector<int64_t> numels = {700, 3, 900};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t chunk_bytes : {int64_t{100}, int64_t{1} << 20U}) {
      for (const int32_t ranks : {2, 3, 5}) {
        const FlatLayout layout(numels, ranks);
        LocalWorld world(ranks);
        world.run([&](Transport& transport) {
          std::vector<at::Tensor> grads;
          for (int64_t p = 0; p < 3; ++p) {
            grads.push_back(
                grad_of(transport.rank().value(), p, numels[static_cast<std::size_t>(p)], type));
          }
          // Replica 0 has not used the first parameter, and no replica the second one.
          if (transport.rank() == Rank(0)) grads[0].reset();
          grads[1].reset();
          at::Tensor sums = at::zeros({layout.piece()}, type);
          ReduceScatter scatter(transport, group_of(transport), id_of(Direction::kGradPieces),
                                layout, grads, sums, chunk_bytes);
          scatter.poll();
          scatter.wait(Deadline::after(kWait));
          const auto segments = layout.segments(transport.rank().value());
          for (std::size_t i = 0; i < segments.size(); ++i) {
            const ShardSegment& part = segments[i];
            EXPECT_EQ(scatter.has_grad()[i], part.parameter != 1);
            if (part.parameter == 1) continue;
            const auto p = static_cast<int64_t>(part.parameter);
            const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
            at::Tensor expected;
            for (int64_t r = p == 0 ? 1 : 0; r < ranks; ++r) {
              const at::Tensor each = grad_of(r, p, numels[part.parameter], type).to(wide);
              expected = expected.defined() ? at::add(expected, each) : each;
            }
            EXPECT_TRUE(at::equal(sums.narrow(0, part.at, part.size()),
                                  expected.to(type).narrow(0, part.begin, part.size())));
          }
          transport.barrier(Deadline::after(kWait));
        });
      }
    }
  }
}

TEST(ShardCollectives, SumsKeepTheSignOfZero) {
  const at::Tensor minus = at::full({4}, -0.0);
  const at::Tensor sum = sum_in_order({at::Tensor(), minus});
  EXPECT_TRUE(sum.signbit().all().item<bool>());
  EXPECT_FALSE(sum_in_order({at::Tensor()}).defined());
}

}  // namespace
}  // namespace stagecraft
