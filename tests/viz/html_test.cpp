#include "stagecraft/viz/html.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "stagecraft/viz/bars.h"
#include "stagecraft/viz/pack.h"
#include "stagecraft/viz/page.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The data of a page, as its script reads them.
nlohmann::json data_of(const std::string& page) {
  const std::string_view open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(DrawHtml, IsOnePageThatLoadsNothing) {
  const Case made = make_case("1F1B", 4, 8);
  const std::string page = draw_html(made.schedule, made.simulation, {.title = "1F1B"});
  EXPECT_THAT(page, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page, testing::EndsWith("</html>\n"));
  EXPECT_EQ(count(page, "</script>"), 2U);
  EXPECT_EQ(count(page, "{{"), 0U);
  for (const char* word : {"http:", "https:", "src=", "@import", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
}

TEST(DrawHtml, CarriesTheSimulation) {
  const Case made = make_case("1F1B", 4, 8);
  const auto data = data_of(draw_html(made.schedule, made.simulation, {.title = "1F1B"}));
  EXPECT_EQ(data["makespan"], 33);
  EXPECT_EQ(data["ranks"], 4);
  EXPECT_EQ(data["microbatches"], 8);
  EXPECT_EQ(data["transfers"], 48);
  EXPECT_EQ(data["barCounts"], "u8:EBAQEA==");
  EXPECT_EQ(data["edgeTo"], "u8:AQID");
  EXPECT_FALSE(data.contains("barParts"));
}

TEST(DrawHtml, CarriesTheSlotsOfActivations) {
  const Case made = make_case("1F1B", 2, 2);
  const auto data = data_of(draw_html(made.schedule, made.simulation));
  EXPECT_EQ(data["rankSlots"], "u8:AgE=");        // 2 1
  EXPECT_EQ(data["barSlot"], "u8:AQIAAAEAAQA=");  // 0F0 0F1 0B0 0B1 1F0 1B0 1F1 1B1
  const Case forward = make_case("ForwardOnly", 2, 2);
  EXPECT_FALSE(data_of(draw_html(forward.schedule, forward.simulation)).contains("barSlot"));
}

TEST(DrawHtml, CarriesOverlaps) {
  const Case made = make_case("DualPipeV", 2, 4);
  const auto data = data_of(draw_html(made.schedule, made.simulation));
  EXPECT_TRUE(data.contains("barParts"));
  EXPECT_TRUE(data.contains("runStart"));
}

TEST(DrawHtml, CarriesThePlan) {
  const Case made = make_case("DualPipeV", 2, 4);
  const Simulation run = uneven_run(made.schedule);
  const auto bare = data_of(draw_html(made.schedule, run));
  EXPECT_FALSE(bare.contains("plan"));
  auto data = data_of(draw_html(made.schedule, run, {.plan = &made.simulation}));
  const auto planned = data_of(draw_html(made.schedule, made.simulation));
  EXPECT_EQ(data["plan"]["makespan"], made.simulation.makespan);
  for (const char* name : {"barStart", "barLength", "barType", "runStart", "barParts", "bubble"}) {
    EXPECT_EQ(data["plan"][name], planned[name]) << name;
  }
  data.erase("plan");
  EXPECT_EQ(data, bare);
}

TEST(DrawHtml, CarriesWhatRanOfAStepThatFailed) {
  const Case made = make_case("1F1B", 2, 2);
  const auto data =
      data_of(draw_html(made.schedule, failed_run(made.simulation, 5), {.plan = &made.simulation}));
  EXPECT_EQ(data["barCounts"], "u8:AwM=");
  EXPECT_EQ(data["plan"]["barCounts"], "u8:BAQ=");
}

TEST(DrawHtml, CarriesWaits) {
  const Case made = waiting_case();
  const auto data = data_of(draw_html(made.schedule, made.simulation));
  std::vector<double> types;
  std::vector<double> lengths;
  for (const Lane& lane : lay_out(made.schedule, made.simulation)) {
    for (const Bar& mark : lane.marks) {
      types.push_back(static_cast<double>(mark.action.type()));
      lengths.push_back(mark.end - mark.start);
    }
  }
  EXPECT_EQ(nlohmann::json(data["markType"]).dump(), pack(types));
  EXPECT_EQ(nlohmann::json(data["markLength"]).dump(), pack(lengths));
  for (const ActionType type :
       {ActionType::kWaitSendForward, ActionType::kWaitSendBackward, ActionType::kWaitReduceGrad}) {
    const auto number = static_cast<std::size_t>(type);
    EXPECT_EQ(data["names"][number], to_string(type));
    EXPECT_THAT(types, testing::Contains(static_cast<double>(number)));
  }
}

TEST(DrawHtml, TakesTitlesForText) {
  const Case made = make_case("1F1B", 2, 2);
  const std::string page =
      draw_html(made.schedule, made.simulation,
                {.title = std::string(kHostile), .subtitle = std::string(kHostile)});
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_THAT(page, Not(HasSubstr("<!-- ")));
  EXPECT_EQ(count(page, "</script>"), 2U);
  EXPECT_EQ(data_of(page)["title"], kHostile);
  EXPECT_EQ(data_of(page)["subtitle"], kHostile);
}

TEST(DrawHtml, IsCompact) {
  const Case made = make_case("1F1B", 64, 512);
  const std::string page = draw_html(made.schedule, made.simulation);
  EXPECT_LT(page.size(), 1U << 20U);
}

TEST(DrawHtml, HasNothingToShowForNothing) {
  for (const Case& made : {empty_case(), instant_case()}) {
    const auto data = data_of(draw_html(made.schedule, made.simulation));
    EXPECT_EQ(data["makespan"], 0);
    EXPECT_EQ(data["bubble"], 0);
  }
}

TEST(Page, HasEachPlaceOnce) {
  for (const char* place : {"{{style}}", "{{data}}", "{{script}}"}) {
    EXPECT_EQ(count(page_template(), place), 1U) << place;
  }
}

}  // namespace
}  // namespace stagecraft::viz
