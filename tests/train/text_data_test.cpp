#include "stagecraft/train/text_data.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {

namespace {

/// 0, 1, 2, ... as bytes, so that a row says where it comes from.
at::Tensor counting_bytes(int64_t bytes) {
  return at::arange(bytes).to(at::kByte);
}

}  // namespace

TEST(TextData, HoldsOutTheEnd) {
  std::string text(100, 'b');
  std::fill_n(text.begin(), 90, 'a');
  const TextData data(text);
  EXPECT_EQ(data.training().numel(), 90);
  EXPECT_EQ(data.evaluation().numel(), 10);
  EXPECT_EQ(data.evaluation()[0].item<int64_t>(), 'b');
}

TEST(TextData, KnowsItsEntropy) {
  EXPECT_DOUBLE_EQ(TextData("aaaa").unigram_entropy(), 0);
  EXPECT_NEAR(TextData("abababab", 0.5).unigram_entropy(), std::log(2), 1e-12);
  EXPECT_NEAR(TextData("aaab").unigram_entropy(), 0.25 * std::log(4) + 0.75 * std::log(4.0 / 3),
              1e-12);
}

TEST(TextData, TellsTextsApart) {
  EXPECT_EQ(TextData("abc").checksum(), TextData("abc", 0.5).checksum());
  EXPECT_NE(TextData("abc").checksum(), TextData("abd").checksum());
}

TEST(TextData, RefusesWhatItCannotRead) {
  EXPECT_ERROR(TextData::read({}), ArgumentError, "at least one text file");
  EXPECT_ERROR(TextData::read({"/no/such/file"}), FileError,
               "/no/such/file: cannot be read: No such file");
  EXPECT_ERROR(TextData(""), ArgumentError, "an empty one");
  EXPECT_ERROR(TextData("abc", 1), ArgumentError, "held-out share");
}

TEST(TextRows, ShowEveryRowOnceAPass) {
  TextRows rows(counting_bytes(200), 8, 1);
  EXPECT_EQ(rows.rows_per_pass(), 24);
  std::vector<std::set<int64_t>> passes;
  for (int pass = 0; pass < 3; ++pass) {
    const auto [inputs, targets] = rows.draw(24);
    EXPECT_TRUE(at::equal(inputs.slice(1, 1), targets.slice(1, 0, 7)));
    std::set<int64_t>& starts = passes.emplace_back();
    for (int64_t r = 0; r < 24; ++r) starts.insert(inputs[r][0].item<int64_t>());
    EXPECT_EQ(starts.size(), 24U);
    // Eight bytes apart, all of them.
    EXPECT_EQ(*starts.rbegin() - *starts.begin(), 23 * 8);
  }
  // Cut at other places; three passes with one shift out of eight would be one seed in 64.
  EXPECT_FALSE(passes[0] == passes[1] && passes[1] == passes[2]);
}

TEST(TextRows, AreKnownByTheirPosition) {
  TextRows all(counting_bytes(200), 8, 5);
  const auto [first, first_targets] = all.draw(17);
  const auto [second, second_targets] = all.draw(20);  // into the next pass
  TextRows later(counting_bytes(200), 8, 5);
  later.set_position(17);
  EXPECT_TRUE(at::equal(later.draw(20).first, second));
  EXPECT_EQ(later.position(), 37);
  TextRows other(counting_bytes(200), 8, 6);
  EXPECT_FALSE(at::equal(other.draw(17).first, first));
  EXPECT_ERROR(TextRows(counting_bytes(16), 8, 1), ArgumentError,
               "at least 17 bytes for rows of 8, got 16");
  EXPECT_EQ(TextRows(counting_bytes(17), 8, 1).rows_per_pass(), 1);
}

}  // namespace stagecraft
