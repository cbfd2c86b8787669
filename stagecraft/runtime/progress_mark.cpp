#include "stagecraft/runtime/progress_mark.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/deadline.h"

namespace stagecraft {
namespace {

constexpr std::size_t kColumns = 6;
using Row = std::array<std::string, kColumns>;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Deadline::Clock::now().time_since_epoch())
      .count();
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:.1f} s", static_cast<double>(time.count()) / 1000);
}

Row row_of(std::size_t rank, const HeardProgress& heard) {
  Row row = {std::to_string(rank), "", "", "", "", heard.is_lost ? "lost" : ""};
  if (!heard.progress) {
    row[1] = "(nothing reported)";
    return row;
  }
  const RankProgress& said = *heard.progress;
  row[1] = said.finished.empty() ? "nothing yet" : said.finished;
  row[2] = said.is_in.empty() ? "-" : said.is_in;
  row[3] = said.waits_for.empty()
               ? "-"
               : fmt::format("{}, for {}", said.waits_for, seconds(said.waits + heard.age));
  row[4] = said.from >= 0 ? fmt::format("rank {}", said.from) : "-";
  if (row[5].empty() && heard.age > std::chrono::seconds(1)) {
    row[5] = fmt::format("silent for {}", seconds(heard.age));
  }
  return row;
}

}  // namespace

ProgressMark::Waiting::Waiting(ProgressMark& mark, Rank from, const TransferId& id) : mark_(mark) {
  mark.since_.store(now(), std::memory_order_relaxed);
  mark.from_.store(from.value(), std::memory_order_relaxed);
  mark.direction_.store(id.direction, std::memory_order_relaxed);
  mark.from_stage_.store(id.from.value(), std::memory_order_relaxed);
  mark.to_stage_.store(id.to.value(), std::memory_order_relaxed);
  mark.microbatch_.store(id.microbatch.value(), std::memory_order_relaxed);
  mark.kind_.store(Kind::kTransfer, std::memory_order_relaxed);
}

ProgressMark::Waiting::Waiting(ProgressMark& mark, const char* what) : mark_(mark) {
  mark.since_.store(now(), std::memory_order_relaxed);
  mark.what_.store(what, std::memory_order_relaxed);
  mark.kind_.store(Kind::kAll, std::memory_order_relaxed);
}

RankProgress ProgressMark::read() const {
  RankProgress read;
  if (const Action finished = finished_.load(); !finished.is_idle()) {
    read.finished = fmt::format("{} of step {}", to_string(finished),
                                finished_step_.load(std::memory_order_relaxed));
  }
  if (const Action current = current_.load(); !current.is_idle()) {
    read.is_in = to_string(current);
  }
  const Kind kind = kind_.load(std::memory_order_relaxed);
  if (kind == Kind::kNothing) return read;
  read.waits = std::chrono::milliseconds(
      std::max<int64_t>(0, (now() - since_.load(std::memory_order_relaxed)) / 1'000'000));
  if (kind == Kind::kAll) {
    read.waits_for = what_.load(std::memory_order_relaxed);
    return read;
  }
  read.from = from_.load(std::memory_order_relaxed);
  read.waits_for = to_string(TransferId{step_.load(std::memory_order_relaxed),
                                        direction_.load(std::memory_order_relaxed),
                                        StageId(from_stage_.load(std::memory_order_relaxed)),
                                        StageId(to_stage_.load(std::memory_order_relaxed)),
                                        MicrobatchId(microbatch_.load(std::memory_order_relaxed))});
  return read;
}

std::string progress_table(std::span<const HeardProgress> ranks) {
  std::vector<Row> rows = {{"rank", "last action", "is in", "waits for", "from", ""}};
  for (std::size_t i = 0; i < ranks.size(); ++i) rows.push_back(row_of(i, ranks[i]));
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < kColumns; ++c) line += fmt::format("  {:<{}}", row[c], widths[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  text.pop_back();
  return text;
}

}  // namespace stagecraft
