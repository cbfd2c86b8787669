#include "stagecraft/tree/describe.h"

#include <gtest/gtest.h>

#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

class Token : public Opaque {
 public:
  std::string describe() const override { return "Token(7)"; }
};

TEST(Describe, Tensors) {
  EXPECT_EQ(describe(at::ones({4, 8}).set_requires_grad(true)), "Tensor[4, 8] float32 grad");
  EXPECT_EQ(describe(at::zeros({}, at::kLong)), "Tensor[] int64");
  EXPECT_EQ(describe(at::zeros({2, 3}, at::kBFloat16).t()), "Tensor[3, 2] bfloat16 stride [1, 3]");
  EXPECT_EQ(describe(at::zeros({2}, at::TensorOptions().device(at::kMeta))),
            "Tensor[2] float32 meta");
  EXPECT_EQ(describe(c10::IValue(at::Tensor())), "Tensor undefined");
  EXPECT_EQ(describe(at::ones({2, 3}).to_sparse()), "Tensor[2, 3] float32 sparse");
  EXPECT_EQ(describe(at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})})),
            "Tensor[?] float32 nested");
}

TEST(Describe, ScalarsAndOthers) {
  EXPECT_EQ(describe(c10::IValue()), "None");
  EXPECT_EQ(describe(c10::IValue(true)), "True");
  EXPECT_EQ(describe(c10::IValue(3)), "3");
  EXPECT_EQ(describe(c10::IValue(0.5)), "0.5");
  EXPECT_EQ(describe(c10::IValue(-1.0)), "-1.0");
  EXPECT_EQ(describe(c10::IValue(1e30)), "1e+30");
  EXPECT_EQ(describe(c10::IValue(c10::complex<double>(1, -2))), "1-2j");
  EXPECT_EQ(describe(c10::IValue("a\"b")), "\"a\\\"b\"");
  EXPECT_EQ(describe(c10::IValue(at::Device(at::kCPU))), "device cpu");
  EXPECT_EQ(describe(make_opaque(c10::make_intrusive<Token>())), "Token(7)");
  EXPECT_EQ(describe(c10::IValue(std::string(100, 'x'))),
            '"' + std::string(60, 'x') + "\"... 100 bytes");
}

TEST(Describe, Containers) {
  const auto value = tree::tuple(
      {at::ones({2}), tree::list({1, 2}), tree::dict({{"mask", c10::IValue()}}), tree::tuple({})});
  EXPECT_EQ(describe(value), "(Tensor[2] float32, [1, 2], {\"mask\": None}, ())");
  EXPECT_EQ(describe(tree::tuple({1})), "(1,)");
  EXPECT_EQ(describe(tree::list(std::vector<c10::IValue>(20, 1))),
            "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ... 4 more]");
}

TEST(Describe, DtypeNamesAreTheUsualOnes) {
  EXPECT_EQ(dtype_name(at::kByte), "uint8");
  EXPECT_EQ(dtype_name(at::kBool), "bool");
  EXPECT_EQ(dtype_name(at::kHalf), "float16");
  EXPECT_EQ(dtype_name(at::kDouble), "float64");
  EXPECT_EQ(dtype_name(at::kComplexFloat), "complex64");
  EXPECT_EQ(dtype_name(at::kUInt16), "uint16");
}

}  // namespace
}  // namespace stagecraft
