#include "stagecraft/viz/svg.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/viz/bars.h"
#include "stagecraft/viz/links.h"
#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/palette.h"

namespace stagecraft {
namespace {

using viz::Bar;
using viz::Lane;

constexpr std::string_view kInk = "#1b2330";
constexpr std::string_view kFaint = "#667085";
constexpr std::string_view kLine = "#c9d0da";
constexpr std::string_view kLaneFill = "#f2f4f7";
constexpr std::string_view kMemory = "#7a5ea8";
constexpr double kMargin = 16;
constexpr double kNarrowest = 0.9;        // bars below this many pixels are drawn as shares
constexpr std::size_t kMostLinks = 1500;  // beyond, lines would hide the bars

/// Roughly what a text takes in a sans-serif font.
double text_width(std::string_view text, double size) {
  return static_cast<double>(text.size()) * size * 0.57;
}

/// A coordinate: two digits are plenty, and fewer where they do.
std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
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
        chunks_(viz::most_chunks(lanes_)) {
    const double ranks = static_cast<double>(lanes_.size());
    lane_height_ =
        options.lane_height ? *options.lane_height : std::clamp(std::round(420 / ranks), 8.0, 26.0);
    const double label = text_width(fmt::format("rank {}", lanes_.size() - 1), 12) + 10;
    left_ = kMargin + label;
    right_ = options.width - kMargin - (options.memory ? 46 : 4);
    memory_height_ = options.memory ? std::max(8.0, lane_height_ * 0.6) : 0;
    gap_ = std::max(2.0, lane_height_ * (options.memory ? 0.35 : 0.2));
    scale_ = simulation.makespan > 0 ? (right_ - left_) / simulation.makespan : 0;
  }

  std::string draw() {
    draw_head();
    draw_lanes();
    draw_axis();
    std::string out = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
        R"(font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif" fill="{2}">)"
        "\n",
        options_.width, px(std::ceil(bottom_)), kInk);
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
          px(kMargin), px(y), kFaint, viz::number_text(simulation_.makespan),
          viz::percent_text(simulation_.bubble), viz::number_text(simulation_.peak_memory),
          simulation_.transfers);
    }
    // Beside the last line where there is room, else below it.
    const double used = options_.summary ? 430 : title;
    const bool beside = y > kMargin && kMargin + used + 24 + legend <= right_;
    if (!types_.empty()) {
      if (!beside) y += y > kMargin ? 22 : 11;
      draw_legend(beside ? right_ - legend : kMargin, y);
    }
    top_ = y + 14;
  }

  double legend_width() const {
    double width = 0;
    for (const ActionType type : types_) {
      width += swatches() * 12 + 6 + text_width(viz::long_name(type), 12) + 16;
    }
    if (chunks_ > 1) width += text_width(kShades, 12) + 16;
    return std::max(0.0, width - 16);
  }

  int32_t swatches() const { return std::min(chunks_, 4); }

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
    if (chunks_ > 1) {
      add("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", px(x), px(y), kFaint, kShades);
    }
    add("</g>\n");
  }

  double lane_top(std::size_t rank) const {
    return top_ + static_cast<double>(rank) * (lane_height_ + memory_height_ + gap_);
  }
  double x_of(double time) const { return left_ + time * scale_; }

  void draw_lanes() {
    add("<g class=\"lanes\" font-size=\"{}\" text-anchor=\"end\">\n",
        px(std::clamp(lane_height_ * 0.8, 9.0, 12.0)));
    const auto every = static_cast<std::size_t>(
        std::max(1.0, std::ceil(11 / (lane_height_ + memory_height_ + gap_))));
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      const double y = lane_top(r);
      add("<path d=\"M{} {}h{}v{}h{}z\" fill=\"{}\"/>\n", px(left_), px(y), px(right_ - left_),
          px(lane_height_), px(left_ - right_), kLaneFill);
      if (r % every != 0) continue;
      add("<text x=\"{}\" y=\"{}\">rank {}</text>\n", px(left_ - 8), px(y + lane_height_ / 2 + 4),
          r);
    }
    add("</g>\n");
    bottom_ = lanes_.empty() ? top_ : lane_top(lanes_.size()) - gap_;

    double shortest = std::numeric_limits<double>::infinity();
    for (const Lane& lane : lanes_) {
      for (const Bar& bar : lane.bars) {
        if (bar.end > bar.start) shortest = std::min(shortest, (bar.end - bar.start) * scale_);
      }
    }
    if (shortest >= kNarrowest) {
      draw_bars(shortest);
    } else {
      draw_shares();
    }
    if (options_.memory) draw_memory();
    if (options_.transfers) draw_transfers();
  }

  void draw_bars(double shortest) {
    // Grouped by colour: half the size of a colour for each, and easy to restyle.
    std::map<std::pair<ActionType, std::string>, std::string> groups;
    std::map<std::pair<std::string, std::string>, std::string> texts;
    const double digits =
        std::max<double>(1.0, static_cast<double>(fmt::format("{}", most_microbatch()).size()));
    const double edge = shortest >= 4 ? 0.8 : shortest >= 2 ? 0.4 : 0;
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      for (const Bar& bar : lanes_[r].bars) {
        const double height = lane_height_ / bar.parts;
        const double y = lane_top(r) + height * bar.part;
        const double x = x_of(bar.start);
        const double width = (bar.end - bar.start) * scale_;
        if (width <= 0) continue;
        const viz::Rgb color = viz::bar_color(bar.action.type(), bar.chunk, lanes_[r].chunks);
        fmt::format_to(std::back_inserter(groups[{bar.action.type(), viz::to_hex(color)}]),
                       "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", px(x + edge / 2),
                       px(y), px(std::max(width - edge, 0.1)),
                       px(height - (bar.part + 1 < bar.parts ? 1 : 0)));
        const double widest = shortest / (0.62 * digits);
        const double size = std::min({11.0, height * 0.62, std::max(widest, 7.0)});
        const std::string number = fmt::format("{}", bar.action.microbatch().value());
        if (size < 5.5 || static_cast<double>(number.size()) * size * 0.6 > width - edge) continue;
        fmt::format_to(std::back_inserter(texts[{px(size), viz::to_hex(viz::text_color(color))}]),
                       "<text x=\"{}\" y=\"{}\">{}</text>\n", px(x + width / 2),
                       px(y + height / 2 + size * 0.36), number);
      }
    }
    for (const auto& [key, rects] : groups) {
      add("<g class=\"{}\" fill=\"{}\">\n{}</g>\n", to_string(key.first), key.second, rects);
    }
    for (const auto& [key, numbers] : texts) {
      add("<g class=\"number\" font-size=\"{}\" fill=\"{}\" text-anchor=\"middle\">\n{}</g>\n",
          key.first, key.second, numbers);
    }
  }

  int32_t most_microbatch() const {
    int32_t most = 0;
    for (const Lane& lane : lanes_) {
      for (const Bar& bar : lane.bars) most = std::max(most, bar.action.microbatch().value());
    }
    return most;
  }

  /// Columns wide enough to hold some bars each, or neighbours would differ by chance.
  int64_t share_columns() const {
    double total = 0;
    double count = 0;
    for (const Lane& lane : lanes_) {
      for (const Bar& bar : lane.bars) total += (bar.end - bar.start) * scale_;
      count += static_cast<double>(lane.bars.size());
    }
    const double column = std::max(1.0, 4 * total / std::max(count, 1.0));
    return std::max<int64_t>(static_cast<int64_t>((right_ - left_) / column), 1);
  }

  void draw_shares() {
    const int64_t columns = share_columns();
    const double width = (right_ - left_) / static_cast<double>(columns);
    for (std::size_t i = 0; i < types_.size(); ++i) {
      add("<g class=\"{}\" fill=\"{}\">\n", to_string(types_[i]),
          viz::to_hex(viz::bar_color(types_[i], 0, 1)));
      for (std::size_t r = 0; r < lanes_.size(); ++r) {
        const auto sampled = viz::sample_columns(lanes_[r], simulation_.makespan, columns);
        const double floor = lane_top(r) + lane_height_;
        // Types are stacked from the floor up; the path goes along the lower edge and back.
        std::string there;
        std::string back;
        double last_low = -1;
        double last_high = -1;
        const auto step = [&](double x, double low, double high) {
          if (px(low) != px(last_low)) {
            there += there.empty() ? fmt::format("M{} {}", px(x), px(low))
                                   : fmt::format("H{}V{}", px(x), px(low));
          }
          if (px(high) != px(last_high)) back.insert(0, fmt::format("V{}H{}", px(high), px(x)));
          last_low = low;
          last_high = high;
        };
        for (int64_t c = 0; c < columns; ++c) {
          double below = 0;
          for (std::size_t j = 0; j < i; ++j) below += sampled[c].share[index_of(types_[j])];
          const double own = sampled[c].share[index_of(types_[i])];
          step(left_ + static_cast<double>(c) * width, floor - below * lane_height_,
               floor - std::min(1.0, below + own) * lane_height_);
        }
        add("<path d=\"{}H{}{}z\"/>\n", there, px(right_), back);
      }
      add("</g>\n");
    }
  }

  static std::size_t index_of(ActionType type) { return static_cast<std::size_t>(type); }

  void draw_memory() {
    const double most = simulation_.peak_memory;
    add("<g class=\"memory\" fill=\"{0}\" stroke=\"{0}\" fill-opacity=\"0.16\">\n", kMemory);
    for (std::size_t r = 0; r < simulation_.memory.size() && r < lanes_.size(); ++r) {
      const double floor = lane_top(r) + lane_height_ + memory_height_ + 1;
      const auto y_of = [&](double memory) {
        return floor - (most > 0 ? memory / most : 0) * (memory_height_ - 1);
      };
      std::string path = fmt::format("M{} {}", px(left_), px(floor));
      for (const MemorySample& sample : simulation_.memory[r]) {
        path += fmt::format("H{}V{}", px(x_of(sample.time)), px(y_of(sample.memory)));
      }
      add("<path d=\"{}H{}V{}z\" stroke-width=\"0.8\" stroke-linejoin=\"round\"/>\n", path,
          px(right_), px(floor));
    }
    add("</g>\n<g class=\"peak\" font-size=\"10\" fill=\"{}\">\n", kMemory);
    for (std::size_t r = 0; r < simulation_.ranks.size() && r < lanes_.size(); ++r) {
      add("<text x=\"{}\" y=\"{}\">{}</text>\n", px(right_ + 5),
          px(lane_top(r) + lane_height_ + memory_height_),
          viz::number_text(simulation_.ranks[r].peak_memory));
    }
    add("</g>\n");
  }

  void draw_transfers() {
    const std::vector<viz::Link> links = viz::find_links(lanes_, graph_);
    if (links.size() > kMostLinks) return;
    add("<g class=\"transfers\" stroke=\"{0}\" stroke-width=\"0.9\" stroke-opacity=\"0.55\" "
        "fill=\"{0}\">\n",
        kInk);
    const auto y_of = [&](std::size_t rank, const Bar& bar) {
      const double height = lane_height_ / bar.parts;
      return lane_top(rank) + height * (bar.part + 0.5);
    };
    for (const viz::Link& link : links) {
      const double x = x_of(link.to->run.start);
      const double y = y_of(link.to_rank, *link.to);
      add("<path d=\"M{} {}L{} {}\"/><circle cx=\"{}\" cy=\"{}\" r=\"1.6\" stroke=\"none\"/>\n",
          px(x_of(link.from->run.end)), px(y_of(link.from_rank, *link.from)), px(x), px(y), px(x),
          px(y));
    }
    add("</g>\n");
  }

  void draw_axis() {
    const double y = bottom_ + 6;
    add("<g class=\"axis\" font-size=\"11\" fill=\"{}\" text-anchor=\"middle\">\n", kFaint);
    add("<path d=\"M{} {}H{}\" stroke=\"{}\" fill=\"none\"/>\n", px(left_), px(y), px(right_),
        kLine);
    if (simulation_.makespan > 0) {
      const double step =
          viz::tick_step(simulation_.makespan, std::max(1.0, (right_ - left_) / 80));
      for (int64_t i = 0; static_cast<double>(i) * step <= simulation_.makespan * (1 + 1e-9); ++i) {
        const double time = static_cast<double>(i) * step;
        add("<path d=\"M{0} {1}v4\" stroke=\"{2}\"/><text x=\"{0}\" y=\"{3}\">{4}</text>\n",
            px(x_of(time)), px(y), kLine, px(y + 16), viz::number_text(time));
      }
    }
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">time</text>\n", px(left_ - 12), px(y + 16));
    add("</g>\n");
    bottom_ = y + 16 + kMargin * 0.75;
  }

  static constexpr std::string_view kShades = "dark to light: stages of a rank";

  const Simulation& simulation_;
  const StageGraph& graph_;
  const SvgOptions& options_;
  std::vector<Lane> lanes_;
  std::vector<ActionType> types_;
  int32_t chunks_;
  double left_ = 0;
  double right_ = 0;
  double top_ = 0;
  double bottom_ = 0;
  double lane_height_ = 0;
  double memory_height_ = 0;
  double gap_ = 0;
  double scale_ = 0;
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
