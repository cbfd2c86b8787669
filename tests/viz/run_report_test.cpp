#include "stagecraft/viz/run_report.h"

#include <cmath>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/viz/page.h"
#include "tests/support/expect_error.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

RunReport small_report() {
  const Schedule schedule = build_schedule("1F1B", {.ranks = 2, .microbatches = 2});
  RunReport report{.title = "</script><b>",
                   .command = "train --title '</script>' \xff",
                   .facts = {{"torch", "2.13"}},
                   .schedule_name = "1F1B",
                   .schedule = schedule,
                   .graph = StageGraph::chain(2),
                   .run = uneven_run(schedule),
                   .plan = simulate(schedule)};
  report.run.makespan = 10;
  report.ranks = {
      {.compute = 6, .waiting_for_gradients = 3, .exposed_gradients = 1},
      {.compute = 4, .start_up = 2, .run_out = 1, .exposed_activations = 0.5, .other = 2.5}};
  report.ranks[0].recorded_peak = 4096;
  report.stages = {{.rank = 0, .name = "first", .parameters = 12, .forward = {2, 1.5, 1.5, 1, 2}},
                   {.rank = 1}};
  report.losses = {{0, 2.5}, {1, std::nan("")}};
  report.comparison.schedules = {{"GPipe", 1, simulate(schedule)}, {"1F1B", 1, simulate(schedule)}};
  report.comparison.unfit = {{"DualPipeV", 2, "too few"}};
  report.stages_per_rank = 1;
  report.assumptions = {"Transfers are free."};
  return report;
}

/// The JSON inside a script element of a page.
Json embedded(const std::string& page, const std::string& id) {
  const std::string open = "<script type=\"application/json\" id=\"" + id + "\">";
  const std::size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(ReportJson, HasTheNumbers) {
  const Json json = Json::parse(report_json(small_report()));
  EXPECT_EQ(json["step"]["makespan"], 10);
  EXPECT_EQ(json["step"]["compute_share"], 0.5);
  EXPECT_EQ(json["step"]["bubble_share"], 0.3);
  EXPECT_EQ(json["step"]["exposed_transfer_share"], 0.075);
  EXPECT_EQ(json["step"]["other_share"], 0.125);
  EXPECT_EQ(json["plan"]["makespan"], small_report().plan->makespan);
  EXPECT_EQ(json["ranks"][0]["bubble"], 3);
  EXPECT_EQ(json["ranks"][1]["bubble"], 3);
  EXPECT_EQ(json["ranks"][1]["exposed_transfer"], 0.5);
  EXPECT_EQ(json["ranks"][0]["memory"]["recorded_peak"], 4096);
  EXPECT_TRUE(json["ranks"][1]["memory"]["recorded_peak"].is_null());
  EXPECT_EQ(json["ranks"][0]["memory"]["predicted"].size(), small_report().plan->memory[0].size());
  EXPECT_EQ(json["stages"][0]["F"]["median"], 1.5);
  EXPECT_TRUE(json["stages"][0]["B"].is_null());
  EXPECT_EQ(json["losses"], Json::parse("[[0, 2.5], [1, null]]"));
  EXPECT_EQ(json["actions"][0].size(), 4u);
  EXPECT_EQ(json["actions"][0][0]["action"], "0F0");
  EXPECT_EQ(json["actions"][0][0]["planned_end"], 1);
}

TEST(ReportJson, HasTheHostBesideADevice) {
  RunReport report = small_report();
  report.ranks[0].is_device_time = true;
  report.ranks[0].host = {.compute = 7, .late = 41, .launch_bound = 3};
  report.ranks[0].device_memory = {.peak_allocated = 100, .reserved = 200};
  const Json json = Json::parse(report_json(report));
  EXPECT_EQ(json["ranks"][0]["clock"], "device");
  EXPECT_EQ(json["ranks"][0]["host"]["late"], 41);
  EXPECT_EQ(json["ranks"][0]["device_memory"]["reserved"], 200);
  EXPECT_EQ(json["ranks"][1]["clock"], "host");
  EXPECT_TRUE(json["ranks"][1]["host"].is_null());
  EXPECT_TRUE(json["ranks"][1]["device_memory"].is_null());
}

TEST(ReportJson, HasWaits) {
  const Case made = waiting_case();
  RunReport report = small_report();
  report.schedule = made.schedule;
  report.run = made.simulation;
  report.plan = made.simulation;
  const Json json = Json::parse(report_json(report));
  std::map<std::string, double> waits;  // and how long they took
  for (const Json& rank : json["actions"]) {
    for (const Json& action : rank) {
      const std::string name = action["action"];
      if (count(name, "WAIT_") > 0)
        waits[name] = action["end"].get<double>() - action["start"].get<double>();
    }
  }
  EXPECT_EQ(waits, (std::map<std::string, double>{{"0WAIT_SEND_F0", 1},
                                                  {"0WAIT_SEND_F1", 0},
                                                  {"0WAIT_REDUCE_GRAD", 0},
                                                  {"1WAIT_SEND_B0", 0},
                                                  {"1WAIT_SEND_B1", 2},
                                                  {"1WAIT_REDUCE_GRAD", 0}}));
  EXPECT_THAT(draw_report(report), HasSubstr("waits for sends and reductions"));
}

TEST(ReportJson, KnowsItselfAmongTheSchedules) {
  RunReport report = small_report();
  const auto marks = [&] {
    std::vector<bool> all;
    const Json json = Json::parse(report_json(report));
    for (const Json& one : json["comparison"]["schedules"]) all.push_back(one["is_this_run"]);
    return all;
  };
  EXPECT_EQ(marks(), (std::vector{false, true}));
  report.stages_per_rank = 2;
  EXPECT_EQ(marks(), (std::vector{false, false}));
  EXPECT_EQ(Json::parse(report_json(report))["comparison"]["unfit"][0]["reason"], "too few");
}

TEST(DrawReport, IsOnePageThatLoadsNothing) {
  const std::string page = draw_report(small_report());
  for (const char* loader :
       {"http://", "https://", " src=", "<link", "@import", "url(", "fetch("}) {
    // The name of SVG's namespace is no address that is ever asked for.
    EXPECT_EQ(count(page, loader), std::string_view(loader) == "http://" ? 1U : 0U) << loader;
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(DrawReport, TextsOfOthersStayTexts) {
  const std::string page = draw_report(small_report());
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_EQ(count(page, "</script>"), 3U);
  EXPECT_EQ(embedded(page, "report")["title"], "</script><b>");
  EXPECT_EQ(embedded(page, "report")["command"], "train --title '</script>' \xEF\xBF\xBD");
  EXPECT_FALSE(embedded(page, "report").contains("actions"));
  EXPECT_EQ(embedded(page, "data")["realUnits"], true);
}

TEST(DrawReport, RefusesAReportOfSomethingElse) {
  RunReport report = small_report();
  report.ranks.pop_back();
  EXPECT_ERROR(draw_report(report), ArgumentError, "about 1 ranks, its schedule has 2");
  report = small_report();
  report.plan->timeline.pop_back();
  EXPECT_THROW(report_json(report), ArgumentError);
}

TEST(DrawReport, TemplateHasEachPlaceOnce) {
  for (const char* place :
       {"{{style}}", "{{reportStyle}}", "{{timeline}}", "{{report}}", "{{data}}", "{{script}}"}) {
    EXPECT_EQ(count(report_template(), place), 1U) << place;
  }
}

}  // namespace
}  // namespace stagecraft::viz
