#include "stagecraft/attention/mask_fns.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/base/error.h"
#include "tests/attention/reference.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using reference::dense_mask;

void expect_rule(const MaskFn& mask, const reference::Rule& rule, int64_t batch, int64_t q_len,
                 int64_t kv_len) {
  const at::Tensor expected = dense_mask(rule, batch, 2, q_len, kv_len);
  EXPECT_TRUE(at::equal(create_mask(mask, batch, 2, q_len, kv_len), expected));
}

TEST(MaskFns, CausalKeepsThePast) {
  expect_rule(
      causal_mask(), [](auto, auto, auto q, auto kv) { return kv <= q; }, 2, 5, 9);
}

TEST(MaskFns, SlidingWindowKeepsThatManyBeforeAndItself) {
  expect_rule(
      sliding_window_mask(3), [](auto, auto, auto q, auto kv) { return kv <= q && q - kv <= 3; }, 1,
      9, 7);
  expect_rule(
      sliding_window_mask(0), [](auto, auto, auto q, auto kv) { return q == kv; }, 1, 4, 4);
  EXPECT_ERROR(sliding_window_mask(-1), ArgumentError, "window must not be negative, got -1");
}

TEST(MaskFns, DocumentsSeeThemselves) {
  const std::vector<std::vector<int64_t>> ids = {{0, 0, 1, 1, 1}, {3, 4, 4, 4, 3}};
  const at::Tensor documents = at::tensor({0, 0, 1, 1, 1, 3, 4, 4, 4, 3}, at::kInt).view({2, 5});
  expect_rule(
      document_mask(documents),
      [&](auto b, auto, auto q, auto kv) { return ids[b][q] == ids[b][kv]; }, 2, 5, 5);
  expect_rule(
      document_mask(documents[1]),
      [&](auto, auto, auto q, auto kv) { return ids[1][q] == ids[1][kv]; }, 2, 5, 5);
  expect_rule(
      document_mask(documents[0], documents[1].narrow(0, 0, 3).sub(3)),
      [&](auto, auto, auto q, auto kv) { return ids[0][q] == ids[1][kv] - 3; }, 1, 5, 3);
}

TEST(MaskFns, DocumentsOfOneRowDoNotDependOnTheBatch) {
  const at::Tensor b = at::tensor({0, 1, 2}, at::kLong).view({3, 1, 1, 1});
  const at::Tensor h = at::tensor({0}, at::kLong).view({1, 1, 1, 1});
  EXPECT_EQ(document_mask(at::tensor({0, 1}, at::kLong))(b, h, h, h).size(0), 1);
}

TEST(MaskFns, DocumentsOfTheWrongKindAreRefused) {
  EXPECT_ERROR(document_mask(at::tensor({0.5, 1.0})), ArgumentError,
               "must be integers of shape [length] or [batch, length], got Tensor[2] float64");
  EXPECT_ERROR(
      document_mask(at::Tensor()), ArgumentError,
      "document_mask: documents must be integers of shape [length] or [batch, length], got "
      "Tensor undefined");
  const at::Tensor good = at::tensor({1}, at::kLong);
  EXPECT_ERROR(document_mask(at::Tensor(), good), ArgumentError, "document_mask: q_documents must");
  EXPECT_ERROR(document_mask(good, at::Tensor()), ArgumentError,
               "document_mask: kv_documents must");
  EXPECT_ERROR(document_mask(at::tensor({1}, at::kLong).view({1, 1, 1})), ArgumentError,
               "Tensor[1, 1, 1] int64");
}

TEST(MaskFns, DocumentsThatAreTooShortAreNamed) {
  const MaskFn mask = document_mask(at::tensor({0, 0, 1}, at::kLong));
  EXPECT_ERROR(create_block_mask(mask, 1, 1, 4, 3), ArgumentError,
               "index 3 is beyond the documents Tensor[3] int64");
  const MaskFn by_member = document_mask(at::tensor({0, 0, 1}, at::kLong).view({1, 3}));
  EXPECT_ERROR(create_block_mask(by_member, 2, 1, 3, 3), ArgumentError,
               "index 1 is beyond the documents Tensor[1, 3] int64");
}

TEST(MaskFns, AndOrCombine) {
  const MaskFn even = [](const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor& kv) { return kv.remainder(2).eq(0); };
  expect_rule(
      and_masks({causal_mask(), even}),
      [](auto, auto, auto q, auto kv) { return kv <= q && kv % 2 == 0; }, 1, 6, 6);
  expect_rule(
      or_masks({causal_mask(), even}),
      [](auto, auto, auto q, auto kv) { return kv <= q || kv % 2 == 0; }, 1, 6, 6);
  expect_rule(
      and_masks({causal_mask(), even, sliding_window_mask(2)}),
      [](auto, auto, auto q, auto kv) { return kv <= q && kv % 2 == 0 && q - kv <= 2; }, 1, 6, 6);
}

TEST(MaskFns, AndOfNothingKeepsAllAndOrOfNothingKeepsNone) {
  expect_rule(
      and_masks({}), [](auto...) { return true; }, 1, 3, 3);
  expect_rule(
      or_masks({}), [](auto...) { return false; }, 1, 3, 3);
  expect_rule(
      no_mask(), [](auto...) { return true; }, 2, 3, 3);
}

TEST(MaskFns, EmptyFunctionsAreRefused) {
  EXPECT_ERROR(and_masks({causal_mask(), MaskFn()}), ArgumentError,
               "and_masks: mask function 1 of 2 is empty");
  EXPECT_ERROR(or_masks({MaskFn()}), ArgumentError, "or_masks: mask function 0 of 1 is empty");
}

}  // namespace
}  // namespace stagecraft
