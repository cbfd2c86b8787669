#include "stagecraft/attention/flex_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/StringUtil.h>

#include "stagecraft/attention/attention_composite.h"
#include "stagecraft/attention/attention_grad.h"
#include "stagecraft/attention/attention_plan.h"
#include "stagecraft/attention/half_attention.h"
#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {
namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw ArgumentError("flex_attention: " + fmt::format(format, std::forward<Args>(args)...));
}

void check_tensor(const at::Tensor& x, const char* name) {
  // Tensors of these kinds cannot be asked for their sizes or their values.
  if (x.defined() && (x.is_nested() || x.layout() != at::kStrided)) {
    refuse("{} must be a dense tensor, got a {} one", name,
           x.is_nested() ? "nested" : c10::str(x.layout()));
  }
  if (x.defined() && x.is_meta())
    refuse("{} is on meta: there are no values to compute with", name);
  if (!x.defined() || x.dim() != 4) {
    refuse("{} must be a dense tensor of shape [batch, heads, length, size], got {}", name,
           describe(x));
  }
  const auto type = x.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kHalf && type != at::kBFloat16) {
    refuse("{} must be float32, float64, float16 or bfloat16, got {}", name, describe(x));
  }
}

void check_like_query(const at::Tensor& x, const char* name, const at::Tensor& query) {
  if (x.scalar_type() != query.scalar_type()) {
    refuse("{} is {} but query is {}: one dtype was expected", name, describe(x), describe(query));
  }
  if (x.device() != query.device()) {
    refuse("{} is on {} but query is on {}", name, x.device().str(), query.device().str());
  }
  if (x.size(0) != query.size(0) && x.size(0) != 1) {
    refuse("the batch of {} {} must be 1 or that of query {}", name, describe(x), describe(query));
  }
}

void check_heads(const at::Tensor& query, const at::Tensor& key, bool enable_gqa) {
  const int64_t heads = query.size(1);
  const int64_t kv_heads = key.size(1);
  if (heads == kv_heads) return;
  require<ArgumentError>(enable_gqa,
                         "flex_attention: query has {} heads, key and value have {}; set "
                         "enable_gqa to share them",
                         heads, kv_heads);
  require<ArgumentError>(kv_heads > 0 && heads % kv_heads == 0,
                         "flex_attention: the {} heads of query must be a multiple of the {} heads "
                         "of key and value",
                         heads, kv_heads);
}

void check_tensors(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  check_tensor(query, "query");
  check_tensor(key, "key");
  check_tensor(value, "value");
  check_like_query(key, "key", query);
  check_like_query(value, "value", query);
  if (key.size(3) != query.size(3)) {
    refuse("query {} and key {} must have the same last size", describe(query), describe(key));
  }
  if (key.sizes().slice(0, 3) != value.sizes().slice(0, 3)) {
    refuse("key {} and value {} must have the same batch, heads and length", describe(key),
           describe(value));
  }
}

void check_mask(const BlockMask& mask, const at::Tensor& query, const at::Tensor& key) {
  const auto [batch, heads, q_len, kv_len] = mask.shape();
  if (batch != 1 && batch != query.size(0)) {
    refuse("the batch of {} must be 1 or that of query {}", mask.describe(), describe(query));
  }
  if (heads != 1 && heads != query.size(1)) {
    refuse("the heads of {} must be 1 or those of query {}", mask.describe(), describe(query));
  }
  if (q_len != query.size(2) || kv_len != key.size(2)) {
    refuse("{} is for {} queries and {} keys, but query has {} and key has {}", mask.describe(),
           q_len, kv_len, query.size(2), key.size(2));
  }
}

bool has_scores(const detail::AttentionProblem& problem) {
  if (problem.batch == 0 || problem.heads() == 0 || problem.q_len == 0 || problem.kv_len == 0) {
    return false;
  }
  return !problem.mask || std::ranges::any_of(problem.mask->grid().kinds(), [](BlockKind kind) {
    return kind != BlockKind::kEmpty;
  });
}

}  // namespace

at::Tensor flex_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const FlexAttentionOptions& options) {
  check_tensors(query, key, value);
  check_heads(query, key, options.enable_gqa);
  if (options.block_mask) check_mask(*options.block_mask, query, key);

  auto problem = c10::make_intrusive<detail::AttentionProblem>();
  problem->batch = query.size(0);
  problem->kv_heads = key.size(1);
  problem->group = query.size(1) == key.size(1) ? 1 : query.size(1) / key.size(1);
  problem->q_len = query.size(2);
  problem->kv_len = key.size(2);
  const auto size = static_cast<double>(query.size(3));
  problem->scale = options.scale.value_or(size > 0 ? 1 / std::sqrt(size) : 1);
  problem->mask = options.block_mask;

  if (options.score_fn && has_scores(*problem)) {
    return detail::attention_composite(*problem, options.score_fn, query, key, value);
  }
  if (detail::takes_half_attention(query) && has_scores(*problem)) {
    return detail::half_attention(problem, query, key, value);
  }
  return detail::attention_with_grad(problem, query, key, value);
}

}  // namespace stagecraft
