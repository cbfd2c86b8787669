#include "stagecraft/viz/svg.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/viz/bars.h"
#include "stagecraft/viz/links.h"
#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/palette.h"
#include "stagecraft/viz/svg_lanes.h"

namespace stagecraft {
namespace {

using viz::Bar;
using viz::Lane;
using viz::px;

constexpr std::string_view kTextInk = "#1b2330";
constexpr std::string_view kFaint = "#667085";
constexpr std::string_view kLine = "#c9d0da";
constexpr std::string_view kLaneFill = "#f2f4f7";
constexpr std::string_view kMemory = "#7a5ea8";
constexpr std::string_view kWait = "#8a93a0";
constexpr double kMargin = 16;
constexpr double kPlanGap = 1.5;          // between a lane and the plan below it
constexpr std::size_t kMostLinks = 1500;  // beyond, lines would hide the bars

/// The approximate width of a text in a sans-serif font.
double text_width(std::string_view text, double size) {
  return static_cast<double>(text.size()) * size * 0.57;
}

class Figure {
 public:
  Figure(const Schedule& schedule, const Simulation& simulation, const StageGraph& graph,
         const SvgOptions& options)
      : simulation_(simulation),
        graph_(graph),
        options_(options),
        lanes_(viz::lay_out(schedule, simulation)),
        types_(viz::used_types(lanes_)),
        chunks_(viz::most_chunks(lanes_)),
        has_waits_(viz::has_long_waits(lanes_)) {
    if (options.plan != nullptr) {
      plan_lanes_ = viz::lay_out(schedule, *options.plan, "plan");
      types_ = viz::used_types(plan_lanes_);  // of the plan: in a recording, some may not have run
    }
    const double ranks = static_cast<double>(lanes_.size());
    box_.height =
        options.lane_height ? *options.lane_height : std::clamp(std::round(420 / ranks), 8.0, 26.0);
    const double label = text_width(fmt::format("rank {}", lanes_.size() - 1), 12) + 10;
    memory_height_ = options.memory ? std::max(8.0, box_.height * 0.6) : 0;
    if (options.plan != nullptr) plan_height_ = std::max(3.0, std::round(box_.height * 0.3));
    plan_room_ = options.plan != nullptr ? plan_height_ + kPlanGap : 0;
    const bool is_stacked = options.memory || options.plan != nullptr;
    gap_ = std::max(2.0, box_.height * (is_stacked ? 0.35 : 0.2));
    box_.left = kMargin + label;
    box_.right = options.width - kMargin - (options.memory ? 46 : 4);
    box_.end = simulation.makespan;
    if (options.plan != nullptr) box_.end = std::max(box_.end, options.plan->makespan);
    box_.pitch = box_.height + plan_room_ + memory_height_ + gap_;
  }

  std::string draw() {
    draw_head();
    draw_lanes();
    draw_axis();
    std::string out = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
        R"(font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif" fill="{2}">)"
        "\n",
        options_.width, px(std::ceil(bottom_)), kTextInk);
    if (!options_.title.empty()) {
      out += fmt::format("<title>{}</title>\n", viz::escape_xml(options_.title));
    }
    if (options_.background) {
      out += fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", options_.width,
                         px(std::ceil(bottom_)));
    }
    return out + body_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }

  void draw_head() {
    double y = kMargin;
    const double legend = legend_width();
    const double title = text_width(options_.title, 16.5);
    if (!options_.title.empty()) {
      y += 14;
      add("<text x=\"{}\" y=\"{}\" font-size=\"16\" font-weight=\"600\">{}</text>\n", px(kMargin),
          px(y), viz::escape_xml(options_.title));
    }
    if (options_.summary) {
      y += options_.title.empty() ? 11 : 19;
      add("<text x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"{}\">makespan {} \xC2\xB7 bubble {} "
          "\xC2\xB7 peak memory {} \xC2\xB7 {} transfers</text>\n",
          px(kMargin), px(y), kFaint, beside_plan(viz::number_text, &Simulation::makespan),
          beside_plan(viz::percent_text, &Simulation::bubble),
          viz::number_text(simulation_.peak_memory), simulation_.transfers);
    }
    // The legend is beside the last line if there is room, otherwise below it.
    const double summary = options_.plan == nullptr ? 430 : 550;
    const double used = options_.summary ? summary : title;
    const bool beside = y > kMargin && kMargin + used + 24 + legend <= box_.right;
    if (!types_.empty()) {
      if (!beside) y += y > kMargin ? 22 : 11;
      draw_legend(beside ? box_.right - legend : kMargin, y);
    }
    box_.top = y + 14;
  }

  std::string beside_plan(std::string (*text)(double), double Simulation::*member) const {
    return viz::beside_plan(text, member, simulation_, options_.plan);
  }

  double legend_width() const {
    double width = 0;
    for (const ActionType type : types_) {
      width += swatches() * 12 + 6 + text_width(viz::long_name(type), 12) + 16;
    }
    if (has_waits_) width += 12 + 6 + text_width("Wait", 12) + 16;
    if (options_.plan != nullptr) width += plan_swatch() + 6 + text_width("plan", 12) + 16;
    if (chunks_ > 1) width += text_width(kShades, 12) + 16;
    return std::max(0.0, width - 16);
  }

  int32_t swatches() const { return std::min(chunks_, 4); }
  double plan_swatch() const {
    return 10 * static_cast<double>(std::min<std::size_t>(types_.size(), 3));
  }

  void draw_legend(double x, double y) {
    add("<g class=\"legend\" font-size=\"12\">\n");
    for (const ActionType type : types_) {
      for (int32_t i = 0; i < swatches(); ++i) {
        const int32_t chunk = swatches() > 1 ? i * (chunks_ - 1) / (swatches() - 1) : 0;
        add("<path d=\"M{} {}h12v12h-12z\" fill=\"{}\"/>\n", px(x), px(y - 10.5),
            viz::to_hex(viz::bar_color(type, chunk, chunks_)));
        x += 12;
      }
      add("<text x=\"{}\" y=\"{}\">{}</text>\n", px(x + 6), px(y), viz::long_name(type));
      x += 6 + text_width(viz::long_name(type), 12) + 16;
    }
    if (has_waits_) {
      add("<path d=\"M{} {}h12v4h-12z\" fill=\"{}\"/>\n", px(x), px(y - 6.5), kWait);
      add("<text x=\"{}\" y=\"{}\">Wait</text>\n", px(x + 18), px(y));
      x += 18 + text_width("Wait", 12) + 16;
    }
    if (options_.plan != nullptr) {
      const double width = plan_swatch();
      for (double at = 0; at < width; at += 10) {
        const ActionType type = types_[static_cast<std::size_t>(at / 10)];
        add("<path d=\"M{} {}h10v5h-10z\" fill=\"{}\" fill-opacity=\"0.55\"/>\n", px(x + at),
            px(y - 7), viz::to_hex(viz::bar_color(type, 0, 1)));
      }
      add("<text x=\"{}\" y=\"{}\">plan</text>\n", px(x + width + 6), px(y));
      x += width + 6 + text_width("plan", 12) + 16;
    }
    if (chunks_ > 1) {
      add("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", px(x), px(y), kFaint, kShades);
    }
    add("</g>\n");
  }

  void draw_lanes() {
    add("<g class=\"lanes\" font-size=\"{}\" text-anchor=\"end\">\n",
        px(std::clamp(box_.height * 0.8, 9.0, 12.0)));
    const auto every = static_cast<std::size_t>(std::max(1.0, std::ceil(11 / box_.pitch)));
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      const double y = box_.top_of(r);
      add("<path d=\"M{} {}h{}v{}h{}z\" fill=\"{}\"/>\n", px(box_.left), px(y),
          px(box_.right - box_.left), px(box_.height), px(box_.left - box_.right), kLaneFill);
      if (r % every != 0) continue;
      add("<text x=\"{}\" y=\"{}\">rank {}</text>\n", px(box_.left - 8),
          px(y + box_.height / 2 + 4), r);
    }
    add("</g>\n");
    bottom_ = lanes_.empty() ? box_.top : box_.top_of(lanes_.size()) - gap_;

    body_ += viz::draw_svg_lanes(lanes_, box_, viz::LaneStyle::kFull);
    if (options_.plan != nullptr) {
      viz::LaneBox below = box_;
      below.top += box_.height + kPlanGap;
      below.height = plan_height_;
      body_ += viz::draw_svg_lanes(plan_lanes_, below, viz::LaneStyle::kMuted);
    }
    if (has_waits_) draw_waits();
    if (options_.memory) draw_memory();
    if (options_.transfers) draw_transfers();
  }

  // Waits are thin, in the middle of the lane, because the rank does not compute.
  void draw_waits() {
    add("<g class=\"wait\" fill=\"{}\">\n", kWait);
    const double height = std::max(2.0, box_.height * 0.2);
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      for (const Interval& wait : viz::long_waits(lanes_[r])) {
        add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", px(box_.x_of(wait.start)),
            px(box_.top_of(r) + (box_.height - height) / 2),
            px(std::max((wait.end - wait.start) * box_.scale(), 0.1)), px(height));
      }
    }
    add("</g>\n");
  }

  void draw_memory() {
    const double most = simulation_.peak_memory;
    add("<g class=\"memory\" fill=\"{0}\" stroke=\"{0}\" fill-opacity=\"0.16\">\n", kMemory);
    for (std::size_t r = 0; r < simulation_.memory.size() && r < lanes_.size(); ++r) {
      const double floor = box_.top_of(r) + box_.height + plan_room_ + memory_height_ + 1;
      const auto y_of = [&](double memory) {
        return floor - (most > 0 ? memory / most : 0) * (memory_height_ - 1);
      };
      std::string path = fmt::format("M{} {}", px(box_.left), px(floor));
      for (const MemorySample& sample : simulation_.memory[r]) {
        path += fmt::format("H{}V{}", px(box_.x_of(sample.time)), px(y_of(sample.memory)));
      }
      add("<path d=\"{}H{}V{}z\" stroke-width=\"0.8\" stroke-linejoin=\"round\"/>\n", path,
          px(box_.right), px(floor));
    }
    add("</g>\n<g class=\"peak\" font-size=\"10\" fill=\"{}\">\n", kMemory);
    for (std::size_t r = 0; r < simulation_.ranks.size() && r < lanes_.size(); ++r) {
      add("<text x=\"{}\" y=\"{}\">{}</text>\n", px(box_.right + 5),
          px(box_.top_of(r) + box_.height + plan_room_ + memory_height_),
          viz::number_text(simulation_.ranks[r].peak_memory));
    }
    add("</g>\n");
  }

  void draw_transfers() {
    const std::vector<viz::Link> links = viz::find_links(lanes_, graph_);
    if (links.size() > kMostLinks) return;
    add("<g class=\"transfers\" stroke=\"{0}\" stroke-width=\"0.9\" stroke-opacity=\"0.55\" "
        "fill=\"{0}\">\n",
        kTextInk);
    const auto y_of = [&](std::size_t rank, const Bar& bar) {
      const double height = box_.height / bar.parts;
      return box_.top_of(rank) + height * (bar.part + 0.5);
    };
    for (const viz::Link& link : links) {
      const double x = box_.x_of(link.to->run.start);
      const double y = y_of(link.to_rank, *link.to);
      add("<path d=\"M{} {}L{} {}\"/><circle cx=\"{}\" cy=\"{}\" r=\"1.6\" stroke=\"none\"/>\n",
          px(box_.x_of(link.from->run.end)), px(y_of(link.from_rank, *link.from)), px(x), px(y),
          px(x), px(y));
    }
    add("</g>\n");
  }

  void draw_axis() {
    const double y = bottom_ + 6;
    add("<g class=\"axis\" font-size=\"11\" fill=\"{}\" text-anchor=\"middle\">\n", kFaint);
    add("<path d=\"M{} {}H{}\" stroke=\"{}\" fill=\"none\"/>\n", px(box_.left), px(y),
        px(box_.right), kLine);
    if (box_.end > 0) {
      const double step = viz::tick_step(box_.end, std::max(1.0, (box_.right - box_.left) / 80));
      for (int64_t i = 0; static_cast<double>(i) * step <= box_.end * (1 + 1e-9); ++i) {
        const double time = static_cast<double>(i) * step;
        add("<path d=\"M{0} {1}v4\" stroke=\"{2}\"/><text x=\"{0}\" y=\"{3}\">{4}</text>\n",
            px(box_.x_of(time)), px(y), kLine, px(y + 16), viz::number_text(time));
      }
    }
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">time</text>\n", px(box_.left - 12),
        px(y + 16));
    add("</g>\n");
    bottom_ = y + 16 + kMargin * 0.75;
  }

  static constexpr std::string_view kShades = "dark to light: stages of a rank";

  const Simulation& simulation_;
  const StageGraph& graph_;
  const SvgOptions& options_;
  std::vector<Lane> lanes_;
  std::vector<ActionType> types_;
  std::vector<Lane> plan_lanes_;
  int32_t chunks_;
  bool has_waits_;  // that take time
  viz::LaneBox box_;
  double bottom_ = 0;
  double memory_height_ = 0;
  double plan_height_ = 0;
  double plan_room_ = 0;  // with the gap above it
  double gap_ = 0;
  std::string body_;
};

}  // namespace

std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const StageGraph& graph, const SvgOptions& options) {
  require<ArgumentError>(options.width >= 200 && options.width <= 100'000,
                         "a figure is 200 to 100000 pixels wide, got {}", options.width);
  require<ArgumentError>(options.lane_height.value_or(4) >= 4,
                         "a lane is 4 pixels high or more, got {}",
                         options.lane_height.value_or(4));
  return Figure(schedule, simulation, graph, options).draw();
}

std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const SvgOptions& options) {
  return draw_svg(schedule, simulation, StageGraph::chain(std::max(schedule.num_stages(), 1)),
                  options);
}

}  // namespace stagecraft
