#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// A number of elements. Parameters begin, and pieces begin and end, at multiples of it. An
/// operator that processes a vector of elements at a time then treats every element of a piece as
/// it would in the whole parameter, and sums over blocks of a parameter do not depend on the
/// pieces.
inline constexpr int64_t kShardBlock = 256;

/// A part of a parameter that lies in a piece. Elements are counted in the order of memory.
struct ShardSegment {
  std::size_t parameter = 0;
  int64_t begin = 0;  ///< in the parameter
  int64_t end = 0;
  int64_t at = 0;  ///< in the piece

  int64_t size() const { return end - begin; }
  friend bool operator==(const ShardSegment&, const ShardSegment&) = default;
};

/// Where the parameters of a unit lie in its flat buffer, which is divided into pieces of equal
/// size, one for each replica. Gaps between parameters and at the end are padding.
class FlatLayout {
 public:
  /// `numels`: the sizes of the parameters, in elements.
  FlatLayout(std::vector<int64_t> numels, int32_t members);

  int64_t piece() const { return piece_; }             ///< elements of a piece
  int64_t whole() const { return piece_ * members_; }  ///< elements of the buffer
  std::size_t num_parameters() const { return numels_.size(); }
  int64_t offset(std::size_t parameter) const { return offsets_[parameter]; }

  /// The parts of parameters in elements [begin, end) of a member's piece, in order.
  std::vector<ShardSegment> segments(int32_t member, int64_t begin, int64_t end) const;
  std::vector<ShardSegment> segments(int32_t member) const { return segments(member, 0, piece_); }

 private:
  std::vector<int64_t> numels_;
  std::vector<int64_t> offsets_;
  int32_t members_;
  int64_t piece_ = 0;
};

}  // namespace stagecraft
