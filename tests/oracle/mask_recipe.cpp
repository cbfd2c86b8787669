#include "tests/oracle/mask_recipe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/TensorIndexing.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index.h>

#include "stagecraft/attention/create_block_mask.h"
#include "stagecraft/attention/mask_fns.h"
#include "stagecraft/base/error.h"

namespace stagecraft::oracle {
namespace {

using at::Tensor;

MaskFn build_function(const Case& recipe) {
  const std::string kind = recipe.get("kind").toStringRef();
  if (kind == "causal") return causal_mask();
  if (kind == "window") return sliding_window_mask(recipe.integer("window"));
  if (kind == "document" || kind == "batch_document") return document_mask(recipe.tensor("ids"));
  if (kind == "table") {
    return [table = recipe.tensor("table")](const Tensor& b, const Tensor& h, const Tensor& q,
                                            const Tensor& kv) {
      return at::index(table, {b.remainder(table.size(0)), h.remainder(table.size(1)), q, kv});
    };
  }
  if (kind == "diagonals") {
    return [](const Tensor&, const Tensor& h, const Tensor& q, const Tensor& kv) {
      return q.add(kv).remainder(h.add(2)).eq(0);
    };
  }
  if (kind == "shifted") {
    return [](const Tensor& b, const Tensor&, const Tensor& q, const Tensor& kv) {
      return q.add(b.mul(3)).ge(kv);
    };
  }
  std::vector<MaskFn> parts;
  for (const auto& part : recipe.get("parts").toListRef()) {
    parts.push_back(build_function(Case(part)));
  }
  if (kind == "and") return and_masks(parts);
  if (kind == "or") return or_masks(parts);
  throw Error(fmt::format("unknown mask {}", kind));
}

}  // namespace

c10::intrusive_ptr<BlockMask> build_mask(const c10::IValue& value) {
  const Case recipe(value);
  const c10::IValue block_value = recipe.get("block");
  const auto& block = block_value.toTupleRef().elements();
  return create_block_mask(build_function(Case(recipe.get("function"))), recipe.integer("batch"),
                           recipe.integer("heads"), recipe.integer("q_len"),
                           recipe.integer("kv_len"), {block[0].toInt(), block[1].toInt()});
}

void expect_mask(const BlockMask& mask, const c10::IValue& value) {
  const Case expected(value);
  const auto check = [&](const std::string& name, const Tensor& actual) {
    const auto tensor = expected.tensor(name);
    EXPECT_EQ(actual.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(actual, tensor)) << name;
  };
  check("kv_num_blocks", mask.kv_num_blocks());
  check("kv_indices", mask.kv_indices());
  check("full_kv_num_blocks", mask.full_kv_num_blocks());
  check("full_kv_indices", mask.full_kv_indices());
  check("q_num_blocks", mask.q_num_blocks());
  check("q_indices", mask.q_indices());
  check("full_q_num_blocks", mask.full_q_num_blocks());
  check("full_q_indices", mask.full_q_indices());
  const auto [batch, heads, q_len, kv_len] = mask.shape();
  check("mask", create_mask(mask.mask_fn(), batch, heads, q_len, kv_len));
  check("to_dense", mask.to_dense());
  EXPECT_NEAR(mask.sparsity(), expected.get("sparsity").toDouble(), 1e-4);
  const auto lengths = expected.get("lengths").toListRef().vec();
  EXPECT_EQ(mask.lengths(), (MaskLengths{lengths[0].toInt(), lengths[1].toInt()}));
}

}  // namespace stagecraft::oracle
