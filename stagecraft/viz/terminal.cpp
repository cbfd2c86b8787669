#include "stagecraft/viz/terminal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/viz/bars.h"
#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/palette.h"

namespace stagecraft {
namespace {

using viz::Bar;
using viz::Column;
using viz::Lane;
using viz::Rgb;

constexpr std::string_view kReset = "\x1b[0m";
constexpr std::array<std::string_view, 9> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kUpperHalf = "▀";
constexpr std::string_view kUpperQuarter = "▘";
constexpr std::string_view kWaitMark = "┄";
constexpr int32_t kMostSwatches = 4;  // of one type in the legend
constexpr double kFull = 0.94;        // a column this busy is drawn without a gap

/// How time is mapped to columns.
struct Scale {
  int64_t columns = 0;  ///< of a lane
  double makespan = 0;
  bool sampled = false;  ///< a column may hold several bars

  int64_t column(double time) const {
    if (makespan <= 0) return 0;
    return std::llround(time / makespan * static_cast<double>(columns));
  }
};

Scale make_scale(std::span<const Lane> lanes, double makespan, int64_t room, std::size_t digits) {
  Scale scale{.columns = room, .makespan = makespan};
  if (const auto step = viz::find_step(lanes, makespan, room)) {
    const auto steps = std::max<int64_t>(std::llround(makespan / *step), 1);
    const auto widest = static_cast<int64_t>(digits) + 2;
    if (steps <= room) {
      scale.columns = steps * std::clamp<int64_t>(room / steps, 1, widest);
      return scale;
    }
  }
  std::size_t count = 0;
  std::size_t narrow = 0;
  for (const Lane& lane : lanes) {
    for (const Bar& bar : lane.bars) {
      if (bar.end <= bar.start) continue;
      ++count;
      const double length = (bar.end - bar.start) / bar.parts;
      if (length * static_cast<double>(room) < makespan) ++narrow;
    }
  }
  scale.sampled = narrow * viz::kFewNarrow > count;
  return scale;
}

char letter(const Bar& bar) {
  const char upper = to_string(bar.action.type()).front();
  return bar.chunk % 2 == 0 ? upper : static_cast<char>(upper - 'A' + 'a');
}

char filler(ActionType type) {
  switch (type) {
    case ActionType::kForward:
      return '-';
    case ActionType::kBackwardInput:
      return '~';
    case ActionType::kBackwardWeight:
      return '+';
    default:
      return '=';
  }
}

class Painter {
 public:
  /// `thin`: bars have half the height, are dim and have no numbers, if the terminal has colours.
  explicit Painter(TerminalColor color, bool thin = false) : color_(color), is_thin_(thin) {}

  bool plain() const { return color_ == TerminalColor::kNone; }

  std::string ink(Rgb color) const { return escape(38, color); }
  std::string paper(Rgb color) const { return escape(48, color); }
  std::string dim(std::string_view text) const {
    return plain() ? std::string(text) : fmt::format("\x1b[2m{}{}", text, kReset);
  }
  std::string bold(std::string_view text) const {
    return plain() ? std::string(text) : fmt::format("\x1b[1m{}{}", text, kReset);
  }
  /// A column in which a rank waits for a send or a reduction.
  std::string wait() const { return is_thin_ ? " " : plain() ? ":" : dim(kWaitMark); }
  std::string swatch(ActionType type, int32_t chunks) const {
    if (plain()) return std::string(to_string(type));
    std::string out;
    for (int32_t chunk = 0; chunk < std::min(chunks, kMostSwatches); ++chunk) {
      const Rgb color = viz::bar_color(type, chunk, chunks);
      out += fmt::format("{}{}{}", paper(color), ink(viz::text_color(color)),
                         chunk == 0 ? fmt::format(" {} ", to_string(type)) : "  ");
    }
    return out + std::string(kReset);
  }

  std::string cell(const Bar& bar, int32_t chunks, int64_t width) const {
    const std::string number = fmt::format("{}", bar.action.microbatch().value());
    const auto room = static_cast<std::size_t>(width);
    if (plain()) {
      std::string text(1, letter(bar));
      if (number.size() + 1 <= room) text += number;
      text.resize(room, filler(bar.action.type()));
      return text;
    }
    const Rgb color = viz::bar_color(bar.action.type(), bar.chunk, chunks);
    if (is_thin_) {
      std::string blocks;
      for (int64_t i = 1; i < width; ++i) blocks += kUpperHalf;
      return thin(color, blocks + std::string(width > 1 ? kUpperQuarter : kUpperHalf));
    }
    std::string text = number.size() <= room ? number : std::string();
    const std::size_t free = room - text.size();
    // A thin edge separates neighbours of one colour.
    const bool edge = free >= 1 && room >= 2;
    const std::size_t left = edge ? (free - 1) / 2 : free / 2;
    const std::size_t right = free - left - (edge ? 1 : 0);
    const Rgb front = viz::text_color(color);
    return fmt::format("{}{}{}{}{}{}", paper(color), edge ? "\x1b[38;5;16m▏" : "", ink(front),
                       std::string(left, ' '), text, std::string(right, ' ')) +
           std::string(kReset);
  }

  std::string column(const Column& column, int32_t chunks) const {
    const double busy = column.busy();
    if (busy <= 0) return plain() ? "." : " ";
    const std::size_t most = column.most();
    const Bar& bar = *column.first[most];
    if (plain()) return std::string(1, busy < 0.5 ? '.' : letter(bar));
    const Rgb color = viz::bar_color(bar.action.type(), bar.chunk, chunks);
    if (is_thin_) return busy < 0.5 ? " " : thin(color, kUpperHalf);
    if (busy < kFull) {
      const auto eighths = std::clamp<int64_t>(std::llround(busy * 8), 1, 7);
      return fmt::format("{}{}{}", ink(color), kBlocks[eighths], kReset);
    }
    const Bar* second = nullptr;
    double share = 0;
    for (std::size_t i = 0; i < column.share.size(); ++i) {
      if (i != most && column.share[i] > share) {
        share = column.share[i];
        second = column.first[i];
      }
    }
    const auto eighths = std::llround(column.share[most] / (column.share[most] + share) * 8);
    if (second == nullptr || eighths >= 8) return fmt::format("{} {}", paper(color), kReset);
    const Rgb back = viz::bar_color(second->action.type(), second->chunk, chunks);
    return fmt::format("{}{}{}{}", paper(back), ink(color), kBlocks[eighths], kReset);
  }

 private:
  std::string thin(Rgb color, std::string_view blocks) const {
    return fmt::format("\x1b[2m{}{}{}", ink(color), blocks, kReset);
  }
  std::string escape(int kind, Rgb color) const {
    if (color_ == TerminalColor::kTrueColor) {
      return fmt::format("\x1b[{};2;{};{};{}m", kind, color.r, color.g, color.b);
    }
    const auto level = [](uint8_t value) {
      return value < 48 ? 0 : value < 115 ? 1 : (value - 35) / 40;
    };
    return fmt::format("\x1b[{};5;{}m", kind,
                       16 + 36 * level(color.r) + 6 * level(color.g) + level(color.b));
  }

  TerminalColor color_;
  bool is_thin_;
};

/// The share of a part in the sum of the times of all parts of its overlap.
double part_share(const Lane& lane, std::size_t i) {
  const Bar& bar = lane.bars[i];
  if (bar.parts == 1) return 1;
  const std::size_t first = i - static_cast<std::size_t>(bar.part);
  double all = 0;
  for (int32_t part = 0; part < bar.parts; ++part) {
    const Interval& run = lane.bars[first + static_cast<std::size_t>(part)].run;
    all += run.end - run.start;
  }
  return all > 0 ? (bar.run.end - bar.run.start) / all : 1.0 / bar.parts;
}

std::string draw_lane(const Lane& lane, const Scale& scale, const Painter& painter) {
  std::string line;
  if (scale.sampled) {
    for (const Column& column : viz::sample_columns(lane, scale.makespan, scale.columns)) {
      line += painter.column(column, lane.chunks);
    }
    return line;
  }
  const std::string idle(1, painter.plain() ? '.' : ' ');
  std::vector<bool> is_waiting(static_cast<std::size_t>(scale.columns), false);
  for (const Interval& wait : viz::long_waits(lane)) {
    const int64_t end = std::min(scale.column(wait.end), scale.columns);
    for (int64_t c = scale.column(wait.start); c < end; ++c) {
      is_waiting[static_cast<std::size_t>(c)] = true;
    }
  }
  int64_t at = 0;
  const auto rest_until = [&](int64_t column) {
    for (; at < column; ++at) {
      line += is_waiting[static_cast<std::size_t>(at)] ? painter.wait() : idle;
    }
  };
  double from = 0;  // an overlap's parts divide its time as they would take it one after the other
  for (std::size_t i = 0; i < lane.bars.size(); ++i) {
    const Bar& bar = lane.bars[i];
    if (bar.part == 0) from = bar.start;
    const double to = from + (bar.end - bar.start) * part_share(lane, i);
    const int64_t begin = std::max(at, scale.column(from));
    const int64_t end = scale.column(to);
    from = to;
    if (end <= begin) continue;
    rest_until(begin);
    line += painter.cell(bar, lane.chunks, end - begin);
    at = end;
  }
  rest_until(scale.columns);
  return line;
}

std::string draw_axis(const Scale& scale) {
  std::string axis;
  if (scale.makespan <= 0 || scale.columns <= 0) return "0";
  const double room = static_cast<double>(viz::number_text(std::ceil(scale.makespan)).size()) + 5;
  const double step =
      viz::tick_step(scale.makespan, std::max(1.0, static_cast<double>(scale.columns) / room));
  for (int64_t i = 0; static_cast<double>(i) * step <= scale.makespan * (1 + 1e-9); ++i) {
    const double time = static_cast<double>(i) * step;
    const auto column = static_cast<std::size_t>(scale.column(time));
    if (i > 0 && column < axis.size() + 1) continue;
    axis.resize(std::max(column, axis.size()), ' ');
    axis += viz::number_text(time);
  }
  return axis;
}

/// The legend: one line, or more if the entries do not fit into `width`.
std::string draw_legend(std::span<const Lane> lanes, const Painter& painter, std::size_t indent,
                        std::size_t width) {
  std::string legend;
  std::size_t used = width;  // of the line; full, so that the first entry starts one
  const auto add = [&](const std::string& mark, std::size_t mark_width, std::string_view text) {
    const std::size_t needs = mark_width + text.size();
    if (used + 3 + needs > width) {
      if (!legend.empty()) legend += '\n';
      legend.append(indent, ' ');
      used = indent;
    } else {
      legend += "   ";
      used += 3;
    }
    legend += mark;
    legend += text;
    used += needs;
  };
  const int32_t chunks = viz::most_chunks(lanes);
  for (const ActionType type : viz::used_types(lanes)) {
    std::string name(viz::long_name(type));
    name.front() = static_cast<char>(name.front() - 'A' + 'a');
    const int32_t swatch = painter.plain() ? 1 : 1 + 2 * std::min(chunks, kMostSwatches);
    add(painter.swatch(type, chunks), static_cast<std::size_t>(swatch), fmt::format(" {}", name));
  }
  if (viz::has_long_waits(lanes)) add(painter.wait(), 1, " wait");
  if (painter.plain()) add("", 0, ". idle");
  if (chunks > 1) {
    add("", 0,
        painter.plain() ? "lower case: every second stage of a rank"
                        : "dark to light: stages of a rank");
  }
  return legend;
}

/// Lanes with the numbers beside them.
struct Rows {
  std::vector<Lane> lanes;
  std::vector<std::string> bubbles = {};
  std::vector<std::string> peaks = {};
  std::size_t bubble_width = std::string_view("bubble").size();
  std::size_t peak_width = std::string_view("memory").size();
};

Rows make_rows(std::vector<Lane> lanes, const Simulation& simulation) {
  Rows rows{.lanes = std::move(lanes)};
  for (std::size_t r = 0; r < rows.lanes.size(); ++r) {
    const RankStats stats = r < simulation.ranks.size() ? simulation.ranks[r] : RankStats{};
    const std::string& bubble = rows.bubbles.emplace_back(viz::percent_text(stats.bubble));
    const std::string& peak = rows.peaks.emplace_back(viz::number_text(stats.peak_memory));
    rows.bubble_width = std::max(rows.bubble_width, bubble.size());
    rows.peak_width = std::max(rows.peak_width, peak.size());
  }
  return rows;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return out;
}

}  // namespace

std::string draw_terminal(const Schedule& schedule, const Simulation& simulation,
                          const TerminalOptions& options) {
  require<ArgumentError>(options.width >= 40 && options.width <= 100'000,
                         "a drawing is 40 to 100000 columns wide, got {}", options.width);
  const Rows real = make_rows(viz::lay_out(schedule, simulation), simulation);
  const std::vector<Lane>& lanes = real.lanes;
  std::vector<Lane> all = lanes;  // what the columns have to fit
  double makespan = simulation.makespan;
  std::optional<Rows> plan;
  if (options.plan != nullptr) {
    plan.emplace(make_rows(viz::lay_out(schedule, *options.plan, "plan"), *options.plan));
    all.insert(all.end(), plan->lanes.begin(), plan->lanes.end());
    makespan = std::max(makespan, options.plan->makespan);
  }
  const Painter painter(options.color);
  const Painter thin(options.color, true);

  // The rank is left of the lane, two numbers are right of it.
  const std::size_t bubble_width = std::max(real.bubble_width, plan ? plan->bubble_width : 0);
  const std::size_t peak_width = std::max(real.peak_width, plan ? plan->peak_width : 0);
  const std::size_t label = fmt::format("rank {}", lanes.size() - 1).size();
  const auto taken = static_cast<int64_t>(label + 2 + 2 + bubble_width + 2 + peak_width);
  const std::size_t digits = std::to_string(std::max(0, schedule.num_microbatches() - 1)).size();
  const Scale scale =
      make_scale(all, makespan, std::max<int64_t>(options.width - taken, 10), digits);

  std::string out;
  if (!options.title.empty()) out += painter.bold(printable(options.title)) + '\n';
  out += painter.dim(fmt::format("{:{}}{:>{}}  {:>{}}", "",
                                 label + 2 + static_cast<std::size_t>(scale.columns) + 2, "bubble",
                                 bubble_width, "memory", peak_width)) +
         '\n';
  const std::size_t most = static_cast<std::size_t>(std::max(options.max_ranks, 2));
  const std::size_t head = lanes.size() <= most ? lanes.size() : (most + 1) / 2;
  const std::size_t tail = lanes.size() <= most ? lanes.size() : lanes.size() - most / 2;
  for (std::size_t r = 0; r < lanes.size(); ++r) {
    if (r == head) {
      out += painter.dim(fmt::format("{:>{}}  ({} more)", "...", label, tail - head)) + '\n';
      r = tail;
    }
    out += fmt::format("{}  {}  {:>{}}  {:>{}}\n",
                       painter.dim(fmt::format("{:>{}}", fmt::format("rank {}", r), label)),
                       draw_lane(lanes[r], scale, painter), real.bubbles[r], bubble_width,
                       real.peaks[r], peak_width);
    if (!plan) continue;
    out += fmt::format("{}  {}  {}\n",
                       painter.dim(fmt::format("{:>{}}", fmt::format("plan {}", r), label)),
                       draw_lane(plan->lanes[r], scale, thin),
                       painter.dim(fmt::format("{:>{}}  {:>{}}", plan->bubbles[r], bubble_width,
                                               plan->peaks[r], peak_width)));
  }
  out += painter.dim(fmt::format("{:>{}}  {}", "time", label, draw_axis(scale))) + '\n';
  const std::string indent(label + 2, ' ');
  out += draw_legend(lanes, painter, indent.size(), static_cast<std::size_t>(options.width)) + '\n';
  out += fmt::format(
      "{}makespan {}   bubble {}   peak memory {}   transfers {}\n", indent,
      viz::beside_plan(viz::number_text, &Simulation::makespan, simulation, options.plan),
      viz::beside_plan(viz::percent_text, &Simulation::bubble, simulation, options.plan),
      viz::number_text(simulation.peak_memory), simulation.transfers);
  return out;
}

}  // namespace stagecraft
