#include "stagecraft/attention/mask_fns.h"

#include <utility>

#include <ATen/ops/eq.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/index.h>
#include <ATen/ops/le.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {
namespace {

void check_not_empty(const std::vector<MaskFn>& masks, const char* name) {
  for (std::size_t i = 0; i < masks.size(); ++i) {
    require<ArgumentError>(masks[i] != nullptr, "{}: mask function {} of {} is empty", name, i,
                           masks.size());
  }
}

void check_documents(const at::Tensor& documents, const char* name) {
  if (!documents.defined() || (documents.dim() != 1 && documents.dim() != 2) ||
      !at::isIntegralType(documents.scalar_type(), /*includeBool=*/false)) {
    throw ArgumentError(
        fmt::format("document_mask: {} must be integers of shape [length] or [batch, length], got "
                    "{}",
                    name, describe(documents)));
  }
}

void check_index(const at::Tensor& index, int64_t size, const at::Tensor& documents) {
  // On other devices, reading the largest index would wait for the device.
  if (!index.is_cpu() || index.numel() == 0) return;
  const auto largest = index.max().item<int64_t>();
  if (largest >= size) {
    throw ArgumentError(fmt::format("document_mask: index {} is beyond the documents {}", largest,
                                    describe(documents)));
  }
}

at::Tensor look_up(const at::Tensor& documents, const at::Tensor& b, const at::Tensor& position) {
  const at::Tensor ids = documents.to(position.device());
  check_index(position, ids.size(-1), ids);
  if (ids.dim() == 1) return at::index(ids, {position});
  check_index(b, ids.size(0), ids);
  return at::index(ids, {b, position});
}

MaskFn same_document(at::Tensor q_documents, at::Tensor kv_documents) {
  return [q_documents = std::move(q_documents), kv_documents = std::move(kv_documents)](
             const at::Tensor& b, const at::Tensor&, const at::Tensor& q, const at::Tensor& kv) {
    return look_up(q_documents, b, q).eq(look_up(kv_documents, b, kv));
  };
}

}  // namespace

MaskFn and_masks(std::vector<MaskFn> masks) {
  check_not_empty(masks, "and_masks");
  if (masks.empty()) return no_mask();
  return [masks = std::move(masks)](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                                    const at::Tensor& kv) {
    at::Tensor kept = masks.front()(b, h, q, kv);
    for (std::size_t i = 1; i < masks.size(); ++i) kept = kept.logical_and(masks[i](b, h, q, kv));
    return kept;
  };
}

MaskFn or_masks(std::vector<MaskFn> masks) {
  check_not_empty(masks, "or_masks");
  return [masks = std::move(masks)](const at::Tensor& b, const at::Tensor& h, const at::Tensor& q,
                                    const at::Tensor& kv) {
    if (masks.empty()) return at::zeros({}, q.options().dtype(at::kBool));
    at::Tensor kept = masks.front()(b, h, q, kv);
    for (std::size_t i = 1; i < masks.size(); ++i) kept = kept.logical_or(masks[i](b, h, q, kv));
    return kept;
  };
}

MaskFn no_mask() {
  return [](const at::Tensor&, const at::Tensor&, const at::Tensor& q, const at::Tensor&) {
    return at::ones({}, q.options().dtype(at::kBool));
  };
}

MaskFn causal_mask() {
  return [](const at::Tensor&, const at::Tensor&, const at::Tensor& q, const at::Tensor& kv) {
    return q.ge(kv);
  };
}

MaskFn sliding_window_mask(int64_t window) {
  require<ArgumentError>(window >= 0, "sliding_window_mask: window must not be negative, got {}",
                         window);
  return [window](const at::Tensor&, const at::Tensor&, const at::Tensor& q, const at::Tensor& kv) {
    return q.ge(kv).logical_and(q.sub(window).le(kv));
  };
}

MaskFn document_mask(const at::Tensor& documents) {
  check_documents(documents, "documents");
  return same_document(documents, documents);
}

MaskFn document_mask(at::Tensor q_documents, at::Tensor kv_documents) {
  check_documents(q_documents, "q_documents");
  check_documents(kv_documents, "kv_documents");
  return same_document(std::move(q_documents), std::move(kv_documents));
}

}  // namespace stagecraft
