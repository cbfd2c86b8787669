#include "stagecraft/viz/html.h"

#include <algorithm>

#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/page.h"
#include "stagecraft/viz/page_data.h"

namespace stagecraft {

std::string draw_html(const Schedule& schedule, const Simulation& simulation,
                      const StageGraph& graph, const HtmlOptions& options) {
  return viz::fill_page(
      viz::page_template(),
      {
          {"title", viz::escape_xml(options.title.empty() ? "Pipeline schedule" : options.title)},
          {"style", std::string(viz::page_style())},
          {"timeline", std::string(viz::timeline_markup())},
          {"data", viz::page_data(schedule, simulation, graph, options)},
          {"script", viz::join(viz::page_scripts())},
      });
}

std::string draw_html(const Schedule& schedule, const Simulation& simulation,
                      const HtmlOptions& options) {
  return draw_html(schedule, simulation, StageGraph::chain(std::max(schedule.num_stages(), 1)),
                   options);
}

}  // namespace stagecraft
