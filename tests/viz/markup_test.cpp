#include "stagecraft/viz/markup.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

TEST(EscapeXml, LeavesNothingToMarkup) {
  EXPECT_EQ(escape_xml("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  EXPECT_EQ(escape_xml("Grüße"), "Grüße");
}

TEST(EscapeXml, ReplacesWhatXmlCannotHold) {
  EXPECT_EQ(escape_xml(std::string_view("a\0b\x1b\x01", 5)), "a\uFFFDb\uFFFD\uFFFD");
  EXPECT_EQ(escape_xml("\xff\xc3"), "\uFFFD\uFFFD");
  EXPECT_EQ(escape_xml("\xEF\xBF\xBF"), "\uFFFD");
}

TEST(QuoteJson, ReadsBackAndCannotEndAScript) {
  const std::string quoted = quote_json(kHostile);
  EXPECT_EQ(nlohmann::json::parse(quoted).get<std::string>(), kHostile);
  EXPECT_EQ(quoted.find('<'), std::string::npos);
  EXPECT_EQ(quote_json("\u2028é"), R"("\u2028\u00e9")");
  EXPECT_EQ(nlohmann::json::parse(quote_json("\xff")).get<std::string>(), "\uFFFD");
}

TEST(NumberText, IsForPeople) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(1456749), "1456749");
  EXPECT_EQ(number_text(0.30000000000000004), "0.3");
  EXPECT_EQ(number_text(12.3456789), "12.3457");
  EXPECT_EQ(number_text(1456749.25), "1456749.2");
}

TEST(ExactText, ReadsBack) {
  for (const double value : {0.0, 1.0, 0.1, 1456749.25, 1e300, 1e-300, 123456789012345678.0}) {
    EXPECT_EQ(nlohmann::json::parse(exact_text(value)).get<double>(), value);
  }
  EXPECT_EQ(exact_text(33), "33");
}

TEST(TickStep, IsRound) {
  EXPECT_EQ(tick_step(33, 10), 5);
  EXPECT_EQ(tick_step(1725, 10), 200);
  EXPECT_NEAR(tick_step(0.05, 5), 0.01, 1e-12);
}

}  // namespace
}  // namespace stagecraft::viz
