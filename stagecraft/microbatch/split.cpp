#include "stagecraft/microbatch/split.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/zeros_like.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree.h"
#include "stagecraft/tree/tree_match.h"

namespace stagecraft {
namespace {

// The same parts as at::tensor_split.
std::vector<at::Tensor> slice_evenly(const at::Tensor& tensor, int64_t dim, int64_t chunks) {
  // Autograd has nothing to record for a tensor without gradients and without a tangent. Bypassing
  // it makes a slice a fifth cheaper. Views are still tracked, because view tracking is one
  // dispatch level below.
  std::optional<at::AutoDispatchBelowAutograd> skip_autograd;
  if (!tensor.requires_grad() && !tensor._fw_grad(/*level=*/0).defined()) skip_autograd.emplace();
  const int64_t size = tensor.size(dim);
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<std::size_t>(chunks));
  int64_t start = 0;
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t end = start + size / chunks + (c < size % chunks ? 1 : 0);
    parts.push_back(at::slice(tensor, dim, start, end));
    start = end;
  }
  return parts;
}

// The args or the kwargs: their values, and how each leaf is split.
class Side {
 public:
  // `root` is "args" or "kwargs", for messages.
  Side(std::string_view root, const c10::IValue& values, const std::optional<ChunkSpec>& spec)
      : root_(root), flat_(tree::flatten(values, root)) {
    specs_.reserve(flat_.leaves.size());
    const bool is_empty = flat_.spec.children().empty();
    if (!spec || is_empty) {
      for (const auto& leaf : flat_.leaves) specs_.push_back(default_leaf_spec(leaf));
    } else {
      check_structure(*spec);
      for (const std::size_t at :
           tree::match(flat_.spec, spec->structure(), root_, tree::Sequences::kAlike)) {
        specs_.push_back(spec->leaves()[at]);
      }
    }
  }

  // The number of chunks that every leaf can give, at most `chunks`.
  int64_t limit(int64_t chunks) const {
    for (std::size_t i = 0; i < flat_.leaves.size(); ++i) {
      chunks = std::min(chunks, limit_of(i, chunks));
    }
    return chunks;
  }

  // Logs the leaf that allows no more than `chunks`, if there is one.
  void log_limit(int64_t chunks, int64_t asked) const {
    for (std::size_t i = 0; i < flat_.leaves.size(); ++i) {
      if (limit_of(i, asked) != chunks) continue;
      log(LogLevel::kInfo, fmt::format("split into {} chunks instead of {}: {} is {}", chunks,
                                       asked, path(i), describe(flat_.leaves[i])));
      return;
    }
  }

  // The leaves of each chunk. REQUIRES chunks <= limit(chunks).
  std::vector<std::vector<c10::IValue>> split(int64_t chunks, bool masked_debug) const {
    std::vector<std::vector<c10::IValue>> out(static_cast<std::size_t>(chunks));
    for (auto& leaves : out) leaves.reserve(flat_.leaves.size());
    for (std::size_t i = 0; i < flat_.leaves.size(); ++i) {
      const auto& leaf = flat_.leaves[i];
      const auto* cut = std::get_if<TensorChunkSpec>(&specs_[i]);
      if (cut == nullptr) {
        for (auto& leaves : out) leaves.push_back(leaf);
      } else if (leaf.isTensor()) {
        SC_ASSERT(chunks <= size_along(i, cut->dim));
        auto parts = split_tensor(leaf.toTensor(), cut->dim, chunks, masked_debug);
        for (std::size_t c = 0; c < parts.size(); ++c) out[c].emplace_back(std::move(parts[c]));
      } else {
        const auto parts = find_opaque<Opaque>(leaf)->split(chunks);
        check_parts(i, parts, chunks);
        for (std::size_t c = 0; c < parts.size(); ++c) out[c].push_back(make_opaque(parts[c]));
      }
    }
    return out;
  }

  const TreeSpec& structure() const { return flat_.spec; }

 private:
  void check_structure(const ChunkSpec& spec) const {
    const auto found = tree::find_difference(flat_.spec, spec.structure(), tree::Sequences::kAlike);
    if (!found) return;
    throw ArgumentError(fmt::format("{0}_spec does not fit {0}, at {0}{1}: {2}", root_, found->path,
                                    found->message));
  }

  std::string path(std::size_t leaf) const { return flat_.spec.leaf_path(leaf, root_); }

  int64_t limit_of(std::size_t i, int64_t chunks) const {
    const auto& leaf = flat_.leaves[i];
    if (std::holds_alternative<Replicate>(specs_[i])) return chunks;
    const auto* cut = std::get_if<TensorChunkSpec>(&specs_[i]);
    if (cut == nullptr) [[unlikely]] {
      throw ArgumentError(fmt::format("{}: {} is split by TensorChunkSpec or Replicate, got {}",
                                      path(i), describe(leaf), to_text(specs_[i])));
    }
    if (leaf.isTensor() && leaf.toTensor().defined()) return size_along(i, cut->dim);
    const auto opaque = find_opaque<Opaque>(leaf);
    const std::optional<int64_t> most = opaque ? opaque->max_chunks() : std::nullopt;
    if (!most) [[unlikely]] {
      throw ArgumentError(
          fmt::format("{}: {} splits tensors and opaque leaves that can be split, got {}", path(i),
                      to_text(specs_[i]), describe(leaf)));
    }
    if (cut->dim != 0) [[unlikely]] {
      throw ArgumentError(fmt::format("{}: an opaque leaf is split along dimension 0, got {}",
                                      path(i), to_text(specs_[i])));
    }
    return std::min(chunks, checked_size(i, *most));
  }

  // The result of Opaque::split is checked, because users implement it.
  void check_parts(std::size_t i, const std::vector<c10::intrusive_ptr<Opaque>>& parts,
                   int64_t chunks) const {
    const auto defined =
        std::ranges::count_if(parts, [](const auto& part) { return part.defined(); });
    require<ArgumentError>(defined == chunks && static_cast<int64_t>(parts.size()) == chunks,
                           "{}: expected {} chunks from Opaque::split of {}, got {}", path(i),
                           chunks, describe(flat_.leaves[i]), defined);
  }

  int64_t size_along(std::size_t i, int64_t dim) const {
    const auto& tensor = flat_.leaves[i].toTensor();
    if (tensor.is_nested() || tensor.layout() != at::kStrided) [[unlikely]] {
      throw ArgumentError(
          fmt::format("{}: only dense tensors can be split, got {}; give it Replicate", path(i),
                      describe(tensor)));
    }
    const int64_t dims = tensor.dim();
    if (dims == 0) [[unlikely]] {
      throw ArgumentError(fmt::format(
          "{}: a tensor without dimensions cannot be split; give it Replicate, or a dimension",
          path(i)));
    }
    if (dim < -dims || dim >= dims) [[unlikely]] {
      throw ArgumentError(
          fmt::format("{}: {} is outside of {}", path(i), to_text(specs_[i]), describe(tensor)));
    }
    return checked_size(i, tensor.size(dim));
  }

  int64_t checked_size(std::size_t i, int64_t size) const {
    if (size == 0) [[unlikely]] {
      throw ArgumentError(fmt::format("{}: {} of {} has no elements to split", path(i),
                                      to_text(specs_[i]), describe(flat_.leaves[i])));
    }
    return size;
  }

  static std::vector<at::Tensor> split_tensor(const at::Tensor& tensor, int64_t dim, int64_t chunks,
                                              bool masked_debug) {
    auto parts = slice_evenly(tensor, dim, chunks);
    // A view of a leaf is not a leaf of autograd. Without retain_grad, only the whole tensor would
    // get a gradient.
    if (tensor.requires_grad() && tensor.is_leaf()) {
      for (const auto& part : parts) {
        if (part.requires_grad()) part.retain_grad();
      }
    }
    if (!masked_debug) return parts;
    int64_t start = 0;
    for (auto& part : parts) {
      const int64_t size = part.size(dim);
      auto full = at::zeros_like(tensor);
      full.narrow(dim, start, size).copy_(part);
      part = std::move(full);
      start += size;
    }
    return parts;
  }

  std::string_view root_;
  tree::Flat flat_;
  std::vector<LeafSpec> specs_;
};

c10::IValue as_dict(const Kwargs& kwargs) {
  return tree::dict({kwargs.begin(), kwargs.end()});
}

// The children of the root, each rebuilt from its own leaves.
std::vector<c10::IValue> rebuild_children(const TreeSpec& root, std::span<c10::IValue> leaves) {
  std::vector<c10::IValue> values;
  values.reserve(root.children().size());
  for (const auto& child : root.children()) {
    values.push_back(tree::unflatten(child, leaves.first(child.num_leaves())));
    leaves = leaves.subspan(child.num_leaves());
  }
  return values;
}

}  // namespace

std::vector<Arguments> split_args_kwargs_into_chunks(const Args& args, const Kwargs& kwargs,
                                                     int64_t chunks, const SplitOptions& options) {
  require<ArgumentError>(chunks >= 1, "chunks must be at least 1, got {}", chunks);
  const Side positional("args", tree::tuple(args), options.args_spec);
  const Side named("kwargs", as_dict(kwargs), options.kwargs_spec);
  const int64_t asked = chunks;
  chunks = named.limit(positional.limit(asked));
  if (chunks < asked && log_enabled(LogLevel::kInfo)) {
    positional.log_limit(chunks, asked);
    named.log_limit(chunks, asked);
  }

  auto args_leaves = positional.split(chunks, options.masked_debug);
  auto kwargs_leaves = named.split(chunks, options.masked_debug);
  std::vector<Arguments> out(static_cast<std::size_t>(chunks));
  for (std::size_t c = 0; c < out.size(); ++c) {
    out[c].args = rebuild_children(positional.structure(), args_leaves[c]);
    auto values = rebuild_children(named.structure(), kwargs_leaves[c]);
    std::vector<Kwargs::Entry> entries;
    entries.reserve(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      entries.emplace_back(named.structure().key(i), std::move(values[i]));
    }
    out[c].kwargs = Kwargs(std::move(entries));
  }
  return out;
}

}  // namespace stagecraft
