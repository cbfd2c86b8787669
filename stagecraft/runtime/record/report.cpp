#include "stagecraft/runtime/record/report.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "stagecraft/runtime/record/device_time.h"
#include "stagecraft/runtime/record/time_use.h"

namespace stagecraft {
namespace {

/// The unit in which times are printed: a whole step has three digits or more.
struct Unit {
  std::string_view name;
  double microseconds = 1;
};

Unit unit_for(double makespan) {
  if (makespan >= 1e7) return {"s", 1e6};
  if (makespan >= 1e4) return {"ms", 1e3};
  return {"us", 1};
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

constexpr std::size_t kColumns = 9;
using Row = std::array<std::string, kColumns>;

std::string lay_out(const std::vector<Row>& rows) {
  std::array<std::size_t, kColumns> width{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < kColumns; ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < kColumns; ++c) {
      text += fmt::format("{}{:>{}}", c == 0 ? "" : "  ", row[c], width[c]);
    }
    text += '\n';
  }
  return text;
}

/// The lines about devices after the table: the host's part, and the allocator's statistics.
std::string device_lines(const StepReport& report, const Unit& unit) {
  const auto time = [&](double value) {
    return fmt::format("{:.1f} {}", value / unit.microseconds, unit.name);
  };
  std::string text;
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    const RankReport& rank = report.ranks[r];
    if (!rank.is_device_time) continue;
    text += fmt::format("rank {}: times of the device; ", r);
    if (rank.host) {
      text += fmt::format("the host took {} to launch the compute", time(rank.host->compute));
      if (rank.host->late > 0) text += fmt::format(" and was late by {}", time(rank.host->late));
      if (rank.host->launch_bound > 0) {
        text += fmt::format("; launching took as long as computing for {} of the compute",
                            time(rank.host->launch_bound));
      }
    } else {
      text += "the step was one launch";
    }
    text += '\n';
    if (const auto& memory = rank.device_memory) {
      text += fmt::format("rank {}: memory of the device: peak {} allocated, {} reserved\n", r,
                          bytes_text(memory->peak_allocated), bytes_text(memory->reserved));
    }
  }
  return text;
}

}  // namespace

StepReport make_report(const Recording& recording) {
  const ClosedRecording closed = close(recording);
  StepReport report{.makespan = microseconds(closed.makespan),
                    .actions = recording.schedule.num_actions()};
  double bubble = 0;
  for (std::size_t r = 0; r < closed.ranks.size(); ++r) {
    const RankRecording& rank = closed.ranks[r];
    const ActionList& list = recording.schedule.lists()[r];
    const TimeUse use = use_of_time(list, rank, closed.makespan);
    RankReport& entry = report.ranks.emplace_back();
    entry.compute = microseconds(use.compute);
    entry.bubble = microseconds(use.bubble);
    entry.exposed_transfer = microseconds(use.exposed);
    entry.waiting_for_weights = microseconds(use.weights);
    entry.other = microseconds(use.other);
    entry.start_up = microseconds(use.start_up);
    entry.waiting_for_activations = microseconds(use.activations);
    entry.waiting_for_gradients = microseconds(use.gradients);
    entry.run_out = microseconds(use.run_out);
    entry.exposed_gradients = microseconds(use.exposed_gradients);
    if (report.makespan > 0) entry.bubble_share = entry.bubble / report.makespan;
    entry.bytes_sent = rank.bytes_sent;
    entry.bytes_received = rank.bytes_received;
    entry.peak_memory = rank.peak_memory;
    entry.device_memory = rank.device_memory;
    entry.is_device_time = !rank.device.empty();
    entry.is_replayed = rank.is_replayed;
    if (entry.is_device_time && !rank.is_replayed) {
      const HostTime host = host_time_of(list, recording.ranks[r]);
      entry.host = {microseconds(host.compute), microseconds(host.late),
                    microseconds(host.launch_bound)};
    }
    bubble += entry.bubble;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_idle() || list[i].is_overlap()) continue;
      if (rank.actions[i].begin < 0) ++report.not_run;
    }
  }
  if (report.makespan > 0) {
    report.bubble_share = bubble / (report.makespan * static_cast<double>(report.ranks.size()));
  }
  return report;
}

std::string to_text(const StepReport& report) {
  const Unit unit = unit_for(report.makespan);
  const auto time = [&](double value) { return fmt::format("{:.1f}", value / unit.microseconds); };
  std::vector<Row> rows = {
      {"rank", "compute", "bubble", "exposed", "other", "bubble %", "sent", "received", "memory"}};
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    const RankReport& rank = report.ranks[r];
    rows.push_back({std::to_string(r), time(rank.compute), time(rank.bubble),
                    time(rank.exposed_transfer), time(rank.other),
                    fmt::format("{:.1f}", 100 * rank.bubble_share), bytes_text(rank.bytes_sent),
                    bytes_text(rank.bytes_received),
                    rank.peak_memory ? bytes_text(*rank.peak_memory) : "-"});
  }
  std::string text = fmt::format("makespan {} {}, bubble {:.1f} %", time(report.makespan),
                                 unit.name, 100 * report.bubble_share);
  if (report.not_run > 0) {
    text += fmt::format(", {} of {} actions did not run", report.not_run, report.actions);
  }
  std::string weights;
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    const double waited = report.ranks[r].waiting_for_weights;
    if (waited <= 0) continue;
    weights +=
        fmt::format("rank {}: waited {} {} for sharded weights\n", r, time(waited), unit.name);
  }
  return text + '\n' + lay_out(rows) + weights + device_lines(report, unit);
}

}  // namespace stagecraft
