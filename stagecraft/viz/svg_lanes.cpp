#include "stagecraft/viz/svg_lanes.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/viz/palette.h"

namespace stagecraft::viz {
namespace {

constexpr double kNarrowest = 0.9;  // bars below this many pixels are too narrow

class LaneFigure {
 public:
  LaneFigure(std::span<const Lane> lanes, const LaneBox& box, LaneStyle style)
      : lanes_(lanes), box_(box), scale_(box.scale()), is_muted_(style == LaneStyle::kMuted) {}

  std::string draw() {
    double shortest = std::numeric_limits<double>::infinity();
    std::size_t count = 0;
    std::size_t narrow = 0;
    for (const Lane& lane : lanes_) {
      for (const Bar& bar : lane.bars) {
        if (bar.end <= bar.start) continue;
        const double width = (bar.end - bar.start) * scale_;
        ++count;
        if (width < kNarrowest) {
          ++narrow;
        } else {
          shortest = std::min(shortest, width);
        }
      }
    }
    if (narrow * kFewNarrow <= count) {
      draw_bars(shortest);
    } else {
      draw_shares();
    }
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void open_group(ActionType type, const std::string& color) {
    if (is_muted_) {
      add("<g class=\"plan\" fill=\"{}\" fill-opacity=\"0.55\">\n", color);
    } else {
      add("<g class=\"{}\" fill=\"{}\">\n", to_string(type), color);
    }
  }

  void draw_bars(double shortest) {
    // Bars are grouped by colour: the file has half the size, and is easy to restyle.
    std::map<std::pair<ActionType, std::string>, std::string> groups;
    std::map<std::pair<std::string, std::string>, std::string> texts;
    const double digits =
        std::max<double>(1.0, static_cast<double>(fmt::format("{}", most_microbatch()).size()));
    const double edge = shortest >= 4 ? 0.8 : shortest >= 2 ? 0.4 : 0;
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      for (const Bar& bar : lanes_[r].bars) {
        const double height = box_.height / bar.parts;
        const double y = box_.top_of(r) + height * bar.part;
        const double x = box_.x_of(bar.start);
        const double width = (bar.end - bar.start) * scale_;
        if (width <= 0) continue;
        const Rgb color = bar_color(bar.action.type(), bar.chunk, lanes_[r].chunks);
        fmt::format_to(std::back_inserter(groups[{bar.action.type(), to_hex(color)}]),
                       "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", px(x + edge / 2),
                       px(y), px(std::max(width - edge, 0.1)),
                       px(height - (bar.part + 1 < bar.parts && !is_muted_ ? 1 : 0)));
        if (is_muted_) continue;
        const double widest = shortest / (0.62 * digits);
        const double size = std::min({11.0, height * 0.62, std::max(widest, 7.0)});
        const std::string number = fmt::format("{}", bar.action.microbatch().value());
        if (size < 5.5 || static_cast<double>(number.size()) * size * 0.6 > width - edge) continue;
        fmt::format_to(std::back_inserter(texts[{px(size), to_hex(text_color(color))}]),
                       "<text x=\"{}\" y=\"{}\">{}</text>\n", px(x + width / 2),
                       px(y + height / 2 + size * 0.36), number);
      }
    }
    for (const auto& [key, rects] : groups) {
      open_group(key.first, key.second);
      add("{}</g>\n", rects);
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

  /// The number of columns. A column must be wide enough for several bars, or neighbours would
  /// differ by chance.
  int64_t share_columns() const {
    double total = 0;
    double count = 0;
    for (const Lane& lane : lanes_) {
      for (const Bar& bar : lane.bars) total += (bar.end - bar.start) * scale_;
      count += static_cast<double>(lane.bars.size());
    }
    const double column = std::max(1.0, 4 * total / std::max(count, 1.0));
    return std::max<int64_t>(static_cast<int64_t>((box_.right - box_.left) / column), 1);
  }

  void draw_shares() {
    const int64_t columns = share_columns();
    const double width = (box_.right - box_.left) / static_cast<double>(columns);
    const std::vector<ActionType> types = used_types(lanes_);
    for (std::size_t i = 0; i < types.size(); ++i) {
      open_group(types[i], to_hex(bar_color(types[i], 0, 1)));
      for (std::size_t r = 0; r < lanes_.size(); ++r) {
        const auto sampled = sample_columns(lanes_[r], box_.end, columns);
        const double floor = box_.top_of(r) + box_.height;
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
          for (std::size_t j = 0; j < i; ++j) below += sampled[c].share[index_of(types[j])];
          const double own = sampled[c].share[index_of(types[i])];
          step(box_.left + static_cast<double>(c) * width, floor - below * box_.height,
               floor - std::min(1.0, below + own) * box_.height);
        }
        add("<path d=\"{}H{}{}z\"/>\n", there, px(box_.right), back);
      }
      add("</g>\n");
    }
  }

  static std::size_t index_of(ActionType type) { return static_cast<std::size_t>(type); }

  std::span<const Lane> lanes_;
  const LaneBox& box_;
  double scale_;
  bool is_muted_;
  std::string out_;
};

}  // namespace

std::string px(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string draw_svg_lanes(std::span<const Lane> lanes, const LaneBox& box, LaneStyle style) {
  return LaneFigure(lanes, box, style).draw();
}

}  // namespace stagecraft::viz
