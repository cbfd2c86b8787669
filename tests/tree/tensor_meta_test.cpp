#include "stagecraft/tree/tensor_meta.h"

#include <vector>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TensorMeta meta(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  return TensorMeta::of(at::zeros(shape, dtype));
}

TEST(TensorMeta, HoldsWhatTheTensorSays) {
  const auto tensor = at::zeros({2, 3}, at::kDouble).t().set_requires_grad(true);
  const auto found = TensorMeta::of(tensor);
  EXPECT_EQ(found.shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(found.stride, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(found.dtype, at::kDouble);
  EXPECT_TRUE(found.requires_grad);
  EXPECT_NE(found, TensorMeta::of(tensor.detach()));
  EXPECT_ERROR(TensorMeta::of(at::Tensor()), ArgumentError, "Tensor undefined has no shape");
  EXPECT_ERROR(TensorMeta::of(at::zeros({2, 2}).to_sparse()), ArgumentError,
               "Tensor[2, 2] float32 sparse has no shape");
}

TEST(TensorMeta, ValidateReportsShapeThenDtypeThenStride) {
  const auto expected = meta({4, 8});
  EXPECT_NO_THROW(validate("x", expected, at::zeros({4, 8})));
  // Everything differs: the shape is what is reported.
  EXPECT_ERROR(validate("x", expected, at::zeros({8, 3}, at::kInt).t()), MetadataError,
               "x: shape mismatch: expected [4, 8], got [3, 8]");
  EXPECT_ERROR(validate("x", expected, at::zeros({8, 4}, at::kInt).t()), MetadataError,
               "x: dtype mismatch: expected float32, got int32");
  EXPECT_ERROR(validate("x", expected, at::zeros({8, 4}).t()), MetadataError,
               "x: stride mismatch: expected [8, 1], got [1, 4]");
  EXPECT_ERROR(validate("x", expected, at::Tensor()), MetadataError,
               "x: expected Tensor[4, 8] float32, got Tensor undefined");
}

TEST(TensorMeta, ValidateIgnoresGradAndStridesThatReachNothing) {
  EXPECT_NO_THROW(validate("x", meta({4}), at::zeros({4}).set_requires_grad(true)));
  EXPECT_NO_THROW(validate("x", meta({1, 8}), at::empty_strided({1, 8}, {99, 1})));
  EXPECT_NO_THROW(validate("x", meta({0, 8}), at::empty_strided({0, 8}, {1, 5})));
}

TEST(TensorMeta, ValidateOfListsChecksTheNumberFirst) {
  const std::vector<TensorMeta> expected = {meta({2}), meta({3})};
  const std::vector<at::Tensor> one = {at::zeros({9})};
  const std::vector<at::Tensor> two = {at::zeros({2}), at::zeros({4})};
  EXPECT_ERROR(validate("stage 1 input", expected, one), MetadataError,
               "stage 1 input: number of values mismatch: expected 2, got 1");
  EXPECT_ERROR(validate("stage 1 input", expected, two), MetadataError,
               "stage 1 input: value 1: shape mismatch: expected [3], got [4]");
}

}  // namespace
}  // namespace stagecraft
