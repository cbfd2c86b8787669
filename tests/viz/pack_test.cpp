#include "stagecraft/viz/pack.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace stagecraft::viz {
namespace {

std::string encode(std::string_view text) {
  return base64(std::vector<unsigned char>(text.begin(), text.end()));
}

TEST(Base64, EqualsTheStandardsVectors) {
  EXPECT_EQ(encode(""), "");
  EXPECT_EQ(encode("f"), "Zg==");
  EXPECT_EQ(encode("fo"), "Zm8=");
  EXPECT_EQ(encode("foo"), "Zm9v");
  EXPECT_EQ(encode("foob"), "Zm9vYg==");
  EXPECT_EQ(encode("fooba"), "Zm9vYmE=");
  EXPECT_EQ(encode("foobar"), "Zm9vYmFy");
}

std::string packed(const std::vector<double>& values) {
  return pack(values);
}

TEST(Pack, TakesTheSmallestTypeThatIsExact) {
  EXPECT_EQ(packed({}), R"("u8:")");
  EXPECT_EQ(packed({0, 1, 255}), R"("u8:AAH/")");
  EXPECT_EQ(packed({256}), R"("u16:AAE=")");
  EXPECT_EQ(packed({65536}), R"("u32:AAABAA==")");
  EXPECT_EQ(packed({0.5}), R"("f32:AAAAPw==")");
  EXPECT_EQ(packed({-1}), R"("f32:AACAvw==")");
  EXPECT_EQ(packed({0.1}).substr(0, 5), R"("f64:)");
  EXPECT_EQ(packed({1e300}).substr(0, 5), R"("f64:)");
  EXPECT_EQ(packed({5e9}).substr(0, 5), R"("f32:)");
  EXPECT_EQ(packed({5000000001}).substr(0, 5), R"("f64:)");
}

}  // namespace
}  // namespace stagecraft::viz
