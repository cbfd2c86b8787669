#include "stagecraft/viz/svg.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Reads a tag at the front of `text`, which starts with '<', and removes it: its name, with '/' in
/// front of it if the tag closes, and after it if the tag is empty. Nothing if it is no tag.
std::optional<std::string> read_tag(std::string_view& text) {
  const auto word = [&] {
    std::string result;
    while (!text.empty() &&
           (std::isalnum(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-')) {
      result += text[0];
      text.remove_prefix(1);
    }
    return result;
  };
  const auto accept = [&](std::string_view what) {
    if (!text.starts_with(what)) return false;
    text.remove_prefix(what.size());
    return true;
  };
  accept("<");
  const bool closes = accept("/");
  std::string name = word();
  if (name.empty()) return std::nullopt;
  std::set<std::string> attributes;
  while (accept(" ")) {
    const std::string attribute = word();
    if (attribute.empty() || !attributes.insert(attribute).second || !accept("=\"")) {
      return std::nullopt;
    }
    const std::size_t end = text.find_first_of("\"<");
    if (end == std::string_view::npos || text[end] != '"') return std::nullopt;
    text.remove_prefix(end + 1);
  }
  const bool empty = accept("/");
  if (!accept(">") || (closes && (empty || !attributes.empty()))) return std::nullopt;
  return (closes ? "/" : "") + name + (empty ? "/" : "");
}

/// What is wrong with `text` as XML: tags that do not pair up, attributes without quotes or twice,
/// bare '<' or '&'. Empty for nothing. (No comments, sections or declarations are expected.)
std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  while (!text.empty()) {
    const std::string place(text.substr(0, 60));
    if (text[0] == '<') {
      const auto tag = read_tag(text);
      if (!tag) return "no tag: " + place;
      if (tag->front() == '/') {
        if (open.empty() || "/" + open.back() != *tag) return "unexpected: " + place;
        open.pop_back();
      } else if (tag->back() != '/') {
        open.push_back(*tag);
      }
      continue;
    }
    if (text[0] == '&') {
      const std::string entity(text.substr(0, text.find(';') + 1));
      if (std::set<std::string>{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}.count(entity) == 0) {
        return "bare &: " + place;
      }
    } else if (open.empty() && text[0] != '\n') {
      return "outside of all elements: " + place;
    }
    text.remove_prefix(1);
  }
  return open.empty() ? "" : "no end of " + open.back();
}

/// How many rectangles are in the groups of a class.
std::size_t rects(const std::string& svg, const std::string& name) {
  std::size_t found = 0;
  const std::string open = "<g class=\"" + name + "\"";
  for (std::size_t at = svg.find(open); at != std::string::npos; at = svg.find(open, at + 1)) {
    found += count(std::string_view(svg).substr(at, svg.find("</g>", at) - at), "<rect ");
  }
  return found;
}

TEST(XmlFault, FindsFaults) {
  EXPECT_EQ(xml_fault("<a b=\"1\"><c/>x &amp; y</a>\n"), "");
  EXPECT_NE(xml_fault("<a><b></a></b>"), "");
  EXPECT_NE(xml_fault("<a>&</a>"), "");
  EXPECT_NE(xml_fault("<a b=1></a>"), "");
  EXPECT_NE(xml_fault("<a b=\"1\" b=\"2\"></a>"), "");
  EXPECT_NE(xml_fault("<a>"), "");
}

TEST(DrawSvg, ShowsWaits) {
  const Case made = waiting_case();
  const std::string text = draw_svg(made.schedule, made.simulation);
  EXPECT_EQ(xml_fault(text), "");
  EXPECT_THAT(text, HasSubstr(">Wait</text>"));
  const std::size_t begin = text.find("<g class=\"wait\"");
  ASSERT_NE(begin, std::string::npos);
  const std::string group = text.substr(begin, text.find("</g>", begin) - begin);
  EXPECT_EQ(count(group, "<rect"), 2U);  // the two that take time
  const Case without = make_case("1F1B", 2, 2);
  EXPECT_THAT(draw_svg(without.schedule, without.simulation), Not(HasSubstr("ait</text>")));
}

TEST(DrawSvg, HasARectangleForEachAction) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"}) {
    const Case made = make_case(name, 4, 8);
    const std::string svg = draw_svg(made.schedule, made.simulation);
    EXPECT_EQ(xml_fault(svg), "") << name;
    EXPECT_EQ(
        static_cast<int64_t>(rects(svg, "F") + rects(svg, "I") + rects(svg, "W") + rects(svg, "B")),
        made.schedule.num_actions())
        << name;
  }
}

TEST(DrawSvg, ColorsByType) {
  const Case made = make_case("1F1B", 4, 8);
  const std::string svg = draw_svg(made.schedule, made.simulation);
  EXPECT_EQ(rects(svg, "F"), 32U);
  EXPECT_EQ(rects(svg, "B"), 32U);
  EXPECT_EQ(rects(svg, "I"), 0U);
  EXPECT_EQ(count(svg, ">Forward<"), 1U);
  EXPECT_EQ(count(svg, ">Backward<"), 1U);
  EXPECT_EQ(count(svg, "Backward, inputs"), 0U);
  EXPECT_EQ(count(svg, ">rank "), 4U);
}

TEST(DrawSvg, PutsBarsWhereTheyRan) {
  const Case made = make_case("1F1B", 1, 1);  // F 0 to 1, B 1 to 3
  const std::string svg = draw_svg(made.schedule, made.simulation);
  const std::regex bar(R"re(class="B"[^>]*>\s*<rect x="([^"]+)" y="[^"]+" width="([^"]+)")re");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(svg, match, bar));
  const double x = std::stod(match[1]);
  const double width = std::stod(match[2]);
  EXPECT_NEAR(x + width, 940, 1);
  EXPECT_NEAR(width / 2, x - (940 - 1.5 * width), 2);
}

TEST(DrawSvg, HasMemoryAndTransfersWhenAsked) {
  const Case made = make_case("1F1B", 4, 8);
  const std::string bare = draw_svg(made.schedule, made.simulation);
  EXPECT_THAT(bare, Not(HasSubstr("class=\"memory\"")));
  EXPECT_THAT(bare, Not(HasSubstr("class=\"transfers\"")));
  const std::string full =
      draw_svg(made.schedule, made.simulation, {.memory = true, .transfers = true});
  EXPECT_EQ(xml_fault(full), "");
  EXPECT_THAT(full, HasSubstr("class=\"memory\""));
  EXPECT_EQ(count(full, "<circle "), 48U);
}

TEST(DrawSvg, TakesATitleForText) {
  const Case made = make_case("GPipe", 2, 2);
  const std::string svg =
      draw_svg(made.schedule, made.simulation, {.title = std::string(kHostile)});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr("&lt;/script&gt;&lt;b&gt;&amp;&quot;&#39;&lt;!-- ]]&gt;</text>"));
}

TEST(DrawSvg, StaysSmallForLargeSchedules) {
  const Case made = make_case("1F1B", 64, 512);
  const std::string svg = draw_svg(made.schedule, made.simulation, {.memory = true});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_LT(svg.size(), 3U << 20U);
  EXPECT_EQ(rects(svg, "F"), 0U);
  EXPECT_THAT(svg, HasSubstr("<g class=\"F\" fill=\"#3e78be\">\n<path d=\"M"));
}

/// The right ends of the rectangles in groups of a class.
std::vector<double> right_ends(const std::string& svg, const std::string& name) {
  std::vector<double> found;
  const std::string open = "<g class=\"" + name + "\"";
  const std::regex rect(R"re(<rect x="([^"]+)" y="[^"]+" width="([^"]+)")re");
  for (std::size_t at = svg.find(open); at != std::string::npos; at = svg.find(open, at + 1)) {
    const std::string group = svg.substr(at, svg.find("</g>", at) - at);
    for (std::sregex_iterator i(group.begin(), group.end(), rect); i != std::sregex_iterator();
         ++i) {
      found.push_back(std::stod((*i)[1]) + std::stod((*i)[2]));
    }
  }
  return found;
}

TEST(DrawSvg, LaysThePlanUnderTheLanesOnOneAxis) {
  const Case made = make_case("1F1B", 4, 8);
  CostModel slow;
  slow.stage.forward = 2;
  slow.stage.backward = 4;
  const Simulation twice = simulate(made.schedule, slow);
  const std::string svg = draw_svg(made.schedule, twice, {.plan = &made.simulation});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(rects(svg, "F") + rects(svg, "B"), 64U);
  EXPECT_EQ(rects(svg, "plan"), 64U);
  EXPECT_EQ(count(svg, ">plan<"), 1U);
  EXPECT_THAT(svg, HasSubstr("makespan 66 (plan 33)"));
  const auto real = right_ends(svg, "B");
  const auto planned = right_ends(svg, "plan");
  EXPECT_NEAR(*std::max_element(real.begin(), real.end()), 940, 1);
  const double left = 16 + 5 * 12 * 0.57 + 10;  // "rank 3"
  EXPECT_NEAR(*std::max_element(planned.begin(), planned.end()), (left + 940) / 2, 5);
}

TEST(DrawSvg, MakesRoomForAPlanThatTakesLonger) {
  const Case made = make_case("1F1B", 4, 8);
  CostModel slow;
  slow.stage.forward = 2;
  slow.stage.backward = 4;
  const Simulation plan = simulate(made.schedule, slow);
  const std::string svg = draw_svg(made.schedule, made.simulation, {.memory = true, .plan = &plan});
  EXPECT_EQ(xml_fault(svg), "");
  for (const double end : right_ends(svg, "plan")) EXPECT_LE(end, 898.1);
  EXPECT_THAT(svg, HasSubstr(">60</text>"));  // of the axis
}

TEST(DrawSvg, IsTheSameWithoutAPlan) {
  const Case made = make_case("1F1B", 4, 8);
  EXPECT_THAT(draw_svg(made.schedule, made.simulation), Not(HasSubstr("plan")));
}

TEST(DrawSvg, RefusesAPlanOfAnotherSchedule) {
  const Case made = make_case("1F1B", 4, 8);
  const Case other = make_case("1F1B", 4, 7);
  EXPECT_ERROR(draw_svg(made.schedule, made.simulation, {.plan = &other.simulation}), ArgumentError,
               "the plan is of a different schedule");
}

TEST(DrawSvg, ShowsSharesOfALargePlan) {
  const Case made = make_case("1F1B", 64, 512);
  const std::string svg = draw_svg(made.schedule, made.simulation, {.plan = &made.simulation});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(rects(svg, "plan"), 0U);
  EXPECT_EQ(count(svg, "<g class=\"plan\""), 2U);
}

TEST(DrawSvg, ShowsWhatRanOfAStepThatFailed) {
  const Case made = make_case("DualPipeV", 4, 8);
  const Simulation run = failed_run(made.simulation, 20);
  const std::string svg =
      draw_svg(made.schedule, run, {.transfers = true, .plan = &made.simulation});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(static_cast<int64_t>(rects(svg, "plan")), made.schedule.num_actions());
  const std::size_t ran = rects(svg, "F") + rects(svg, "I") + rects(svg, "W") + rects(svg, "B");
  EXPECT_GT(ran, 20U);
  EXPECT_LT(static_cast<int64_t>(ran), made.schedule.num_actions());
  EXPECT_THAT(svg, Not(testing::ContainsRegex("=\"-|M-")));
}

TEST(DrawSvg, KeepsBarsWhenAFewAreTooNarrow) {
  CostModel costs;
  costs.microbatches.push_back({StageId(1), MicrobatchId(3), {.forward = 1e-4}});
  const Case made = make_case("1F1B", 4, 8, costs);
  EXPECT_EQ(rects(draw_svg(made.schedule, made.simulation), "F"), 32U);
}

TEST(DrawSvg, HasNothingToShowForNothing) {
  for (const Case& made : {empty_case(), instant_case()}) {
    const std::string svg =
        draw_svg(made.schedule, made.simulation, {.title = "t", .memory = true, .transfers = true});
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_THAT(svg, Not(testing::ContainsRegex("nan|inf")));
    EXPECT_THAT(svg, HasSubstr("makespan 0"));
  }
}

TEST(DrawSvg, IsTheSameEveryTime) {
  const Case made = make_case("DualPipeV", 4, 8);
  EXPECT_EQ(draw_svg(made.schedule, made.simulation), draw_svg(made.schedule, made.simulation));
}

TEST(DrawSvg, RefusesSizesThatHoldNothing) {
  const Case made = make_case("GPipe", 1, 1);
  EXPECT_ERROR(draw_svg(made.schedule, made.simulation, {.width = 199}), ArgumentError, "got 199");
  EXPECT_ERROR(draw_svg(made.schedule, made.simulation, {.width = 100'001}), ArgumentError,
               "got 100001");
  EXPECT_ERROR(draw_svg(made.schedule, made.simulation, {.lane_height = 3}), ArgumentError,
               "got 3");
}

}  // namespace
}  // namespace stagecraft::viz
