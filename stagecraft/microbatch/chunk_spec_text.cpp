#include <fmt/format.h>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/microbatch/chunk_spec.h"
#include "stagecraft/tree/tree_text.h"

namespace stagecraft {
namespace {

struct LeafText {
  std::string operator()(NoSpec) const { return "None"; }
  std::string operator()(TensorChunkSpec spec) const {
    return fmt::format("TensorChunkSpec({})", spec.dim);
  }
  std::string operator()(Replicate) const { return "Replicate"; }
  std::string operator()(const CustomReducer&) const { return "CustomReducer"; }
  std::string operator()(LossReducer) const { return "LossReducer"; }
};

LeafSpec read_leaf(TextCursor& in) {
  const TextCursor start = in;
  const std::string_view word = in.read_word();
  if (word == "TensorChunkSpec") {
    in.expect("(");
    const int64_t dim = in.read_integer();
    in.expect(")");
    return TensorChunkSpec{dim};
  }
  if (word == "Replicate") return Replicate{};
  if (word == "LossReducer") return LossReducer{};
  if (word == "None") return NoSpec{};
  if (word == "CustomReducer") {
    start.fail("a CustomReducer contains a function, which cannot be parsed from text");
  }
  start.fail(fmt::format("expected TensorChunkSpec(dim), Replicate, LossReducer or None, got {}",
                         word.empty() ? start.describe_next() : fmt::format("'{}'", word)));
}

}  // namespace

std::string to_text(const LeafSpec& spec) {
  return std::visit(LeafText(), spec);
}

std::string to_text(const ChunkSpec& spec) {
  return to_text(spec.structure(), [&](std::size_t leaf) { return to_text(spec.leaves()[leaf]); });
}

ChunkSpec parse_chunk_spec(std::string_view text) {
  std::vector<LeafSpec> leaves;
  TreeSpec structure =
      parse_tree_spec(text, [&](TextCursor& in) { leaves.push_back(read_leaf(in)); });
  return {std::move(structure), std::move(leaves)};
}

}  // namespace stagecraft
