#include "stagecraft/viz/html.h"
#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/page.h"
#include "stagecraft/viz/page_data.h"
#include "stagecraft/viz/report_json.h"
#include "stagecraft/viz/run_report.h"

namespace stagecraft {

std::string draw_report(const RunReport& report) {
  const HtmlOptions options{
      .title = report.title, .plan = report.plan ? &*report.plan : nullptr, .real_units = true};
  return viz::fill_page(
      viz::report_template(),
      {
          {"title", viz::escape_xml(report.title.empty() ? "Pipeline run" : report.title)},
          {"style", std::string(viz::page_style())},
          {"reportStyle", std::string(viz::report_style())},
          {"timeline", std::string(viz::timeline_markup())},
          {"report", viz::report_data(report)},
          {"data", viz::page_data(report.schedule, report.run, report.graph, options)},
          {"script", viz::join(viz::page_scripts()) + viz::join(viz::report_scripts())},
      });
}

}  // namespace stagecraft
