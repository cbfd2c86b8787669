#include "stagecraft/microbatch/merge.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

// One leaf of the result: the same leaf of every chunk.
class Column {
 public:
  Column(const TreeSpec& structure, std::size_t leaf,
         std::span<const std::vector<c10::IValue>> rows)
      : structure_(structure), leaf_(leaf), rows_(rows) {}

  std::size_t size() const { return rows_.size(); }
  const c10::IValue& value(std::size_t chunk) const { return rows_[chunk][leaf_]; }

  std::string path(std::size_t chunk) const {
    return structure_.leaf_path(leaf_, fmt::format("chunks[{}]", chunk));
  }

  // The tensor of a chunk, which must have the dimension `dim`.
  const at::Tensor& tensor(std::size_t chunk, int64_t dim) const {
    const c10::IValue& found = value(chunk);
    if (!found.isTensor() || !found.toTensor().defined()) [[unlikely]] {
      throw MetadataError(fmt::format(
          "{}: only tensors can be concatenated, got {}; give it Replicate or a reducer",
          path(chunk), describe(found)));
    }
    const at::Tensor& tensor = found.toTensor();
    if (tensor.is_nested() || tensor.layout() != at::kStrided) [[unlikely]] {
      throw MetadataError(fmt::format("{}: only dense tensors can be concatenated, got {}",
                                      path(chunk), describe(tensor)));
    }
    if (dim < -tensor.dim() || dim >= tensor.dim()) [[unlikely]] {
      throw MetadataError(fmt::format("{}: {} has no dimension {} to concatenate along{}",
                                      path(chunk), describe(tensor), dim,
                                      tensor.dim() == 0 ? "; give it a reducer" : ""));
    }
    return tensor;
  }

 private:
  const TreeSpec& structure_;
  std::size_t leaf_;
  std::span<const std::vector<c10::IValue>> rows_;
};

at::Tensor concatenate(const Column& column, const std::vector<at::Tensor>& parts, int64_t dim) {
  try {
    return at::cat(parts, dim);
  } catch (const c10::Error& error) {
    // Name the chunk that does not fit: the first with a different device than chunk 0, or a
    // different shape apart from `dim`.
    for (std::size_t c = 1; c < parts.size(); ++c) {
      auto expected = parts[0].sizes().vec();
      const auto at = static_cast<std::size_t>(dim < 0 ? dim + parts[0].dim() : dim);
      if (parts[c].dim() == parts[0].dim()) expected[at] = parts[c].sizes()[at];
      require<MetadataError>(
          parts[c].sizes() == c10::IntArrayRef(expected) && parts[c].device() == parts[0].device(),
          "{}: cannot concatenate {} along {} with {} of chunk 0", column.path(c),
          describe(parts[c]), dim, describe(parts[0]));
    }
    throw MetadataError(
        fmt::format("{}: cannot concatenate: {}", column.path(0), error.what_without_backtrace()));
  }
}

at::Tensor merge_cut(const Column& column, int64_t dim) {
  std::vector<at::Tensor> parts;
  parts.reserve(column.size());
  for (std::size_t c = 0; c < column.size(); ++c) parts.push_back(column.tensor(c, dim));
  return concatenate(column, parts, dim);
}

// Each chunk has the full size. Only the part that at::tensor_split would have put into the chunk
// counts.
at::Tensor merge_masked(const Column& column, int64_t dim) {
  const at::Tensor& first = column.tensor(0, dim);
  const auto chunks = static_cast<int64_t>(column.size());
  const int64_t size = first.size(dim);
  std::vector<at::Tensor> parts;
  int64_t start = 0;
  for (std::size_t c = 0; c < column.size(); ++c) {
    const at::Tensor& full = column.tensor(c, dim);
    require<MetadataError>(full.sizes() == first.sizes(),
                           "{}: chunks of a masked split have the full size; expected {}, got {}",
                           column.path(c), describe(first), describe(full));
    const int64_t length = size / chunks + (static_cast<int64_t>(c) < size % chunks ? 1 : 0);
    parts.push_back(full.narrow(dim, start, length));
    start += length;
  }
  return concatenate(column, parts, dim);
}

// As tree::leaf_equal. In addition, numbers of different kinds are equal if their values are equal.
bool same_value(const c10::IValue& a, const c10::IValue& b) {
  const auto as_real = [](const c10::IValue& x) {
    return x.isDouble() ? x.toDouble() : x.isBool() ? double(x.toBool()) : double(x.toInt());
  };
  const auto is_real = [](const c10::IValue& x) { return x.isDouble() || x.isInt() || x.isBool(); };
  return tree::leaf_equal(a, b) ||
         (is_real(a) && is_real(b) && !(a.isInt() && b.isInt()) && as_real(a) == as_real(b));
}

c10::IValue merge_equal(const Column& column) {
  for (std::size_t c = 1; c < column.size(); ++c) {
    if (same_value(column.value(0), column.value(c))) continue;
    throw MetadataError(fmt::format("{}: expected the value of chunk 0, {}, got {}{}",
                                    column.path(c), describe(column.value(0)),
                                    describe(column.value(c)),
                                    column.value(c).isTensor() ? " with different elements" : ""));
  }
  return column.value(0);
}

c10::IValue fold(const Column& column, const CustomReducer& reducer) {
  c10::IValue acc = reducer.init;
  for (std::size_t c = 0; c < column.size(); ++c) acc = reducer.reduce(acc, column.value(c));
  return acc;
}

at::Tensor merge_loss(const Column& column) {
  at::Tensor sum = at::zeros({});
  for (std::size_t c = 0; c < column.size(); ++c) {
    const c10::IValue& value = column.value(c);
    const bool is_tensor = value.isTensor() && value.toTensor().defined();
    if (!is_tensor && !value.isScalar()) {
      throw MetadataError(fmt::format("{}: LossReducer adds tensors and numbers, got {}",
                                      column.path(c), describe(value)));
    }
    try {
      sum = is_tensor ? sum.add(value.toTensor()) : sum.add(value.toScalar());
    } catch (const c10::Error&) {
      throw MetadataError(fmt::format("{}: LossReducer cannot add {} to the sum before it, {}",
                                      column.path(c), describe(value), describe(sum)));
    }
  }
  return sum;
}

// Null if the values are not opaque leaves, or if their class cannot merge.
c10::intrusive_ptr<Opaque> merge_opaque(const Column& column) {
  std::vector<c10::intrusive_ptr<Opaque>> parts;
  for (std::size_t c = 0; c < column.size(); ++c) {
    parts.push_back(find_opaque<Opaque>(column.value(c)));
    if (!parts.back()) return {};
  }
  return parts.front()->merge(parts);
}

c10::IValue merge_leaf(const Column& column, const LeafSpec& spec, const MergeOptions& options) {
  if (const auto* cut = std::get_if<TensorChunkSpec>(&spec)) {
    if (column.value(0).isCapsule() && cut->dim == 0) {
      if (auto merged = merge_opaque(column)) return make_opaque(std::move(merged));
    }
    return options.masked_debug ? merge_masked(column, cut->dim) : merge_cut(column, cut->dim);
  }
  if (const auto* reducer = std::get_if<CustomReducer>(&spec)) return fold(column, *reducer);
  if (std::holds_alternative<LossReducer>(spec)) return merge_loss(column);
  return merge_equal(column);
}

std::vector<c10::IValue> leaves_of(const TreeSpec& structure, const c10::IValue& chunk,
                                   std::size_t number) {
  try {
    return tree::flatten_as(structure, chunk, "", tree::Sequences::kAlike);
  } catch (const Error& error) {
    // The message starts with the path inside the chunk.
    throw MetadataError(fmt::format("chunks[{}]{}", number, error.what()));
  }
}

}  // namespace

c10::IValue merge_chunks(std::span<const c10::IValue> chunks, const std::optional<ChunkSpec>& spec,
                         const MergeOptions& options) {
  require<ArgumentError>(!chunks.empty(), "chunks: expected at least one, got none");
  const TreeSpec structure =
      spec ? spec->structure() : tree::flatten(chunks.front(), "chunks[0]").spec;
  std::vector<std::vector<c10::IValue>> rows;
  rows.reserve(chunks.size());
  for (const auto& chunk : chunks) rows.push_back(leaves_of(structure, chunk, rows.size()));
  static const LeafSpec kConcatenate = TensorChunkSpec{};
  std::vector<c10::IValue> merged;
  merged.reserve(structure.num_leaves());
  for (std::size_t i = 0; i < structure.num_leaves(); ++i) {
    merged.push_back(
        merge_leaf({structure, i, rows}, spec ? spec->leaves()[i] : kConcatenate, options));
  }
  return tree::unflatten(structure, std::move(merged));
}

}  // namespace stagecraft
