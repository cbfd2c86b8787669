#include "cli/train/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "stagecraft/base/json_text.h"

namespace stagecraft::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The line on a terminal is updated at most this often.
constexpr auto kRefresh = std::chrono::milliseconds(100);
constexpr double kGibibyte = 1024.0 * 1024 * 1024;
/// The number of plain lines of a run.
constexpr int64_t kLines = 20;

/// A line of JSON. Bytes that are not UTF-8 become the replacement character.
std::string json_line(const OrderedJson& json) {
  return json_to_text(json, {.repair = true}) + '\n';
}

std::string format_left(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

/// The text without control characters and without bytes that are not UTF-8.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : ordered_json_from_text(json_line(text)).get<std::string>()) {
    const auto byte = static_cast<unsigned char>(c);
    out += (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F ? '?' : c;
  }
  return out;
}

}  // namespace

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
}

Progress::Progress(const TrainCommand& command, int64_t first_step)
    : kind_(command.is_quiet               ? Kind::kQuiet
            : command.is_json              ? Kind::kJson
            : ::isatty(STDOUT_FILENO) != 0 ? Kind::kTerminal
                                           : Kind::kLines),
      steps_(command.steps),
      first_step_(first_step),
      tokens_a_step_(command.batch * command.model.context),
      unit_(command.unit),
      every_(std::max<int64_t>(1, command.steps / kLines)) {}

void Progress::write(const std::string& text) {
  write_output("-", text);
}

void Progress::write_over(const std::string& text) {
  // The cursor goes back to the first column. The rest of a longer old line is erased. A new line
  // that is too long is truncated.
  const auto columns = static_cast<std::size_t>(terminal_columns().value_or(80));
  write("\r" + text.substr(0, columns - 1) + "\x1b[K");
  is_open_ = true;
}

void Progress::end() {
  if (is_open_) write("\n");
  is_open_ = false;
}

double Progress::seconds_left(const TrainStep& step) const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  const auto done = static_cast<double>(step.step - first_step_);
  return passed.count() / done * static_cast<double>(steps_ - step.step);
}

void Progress::step(const TrainStep& step) {
  const double speed = static_cast<double>(tokens_a_step_) / std::max(step.seconds, 1e-9);
  const bool is_first = tokens_per_second_ == 0;
  tokens_per_second_ = is_first ? speed : 0.9 * tokens_per_second_ + 0.1 * speed;
  if (kind_ == Kind::kQuiet) return;
  if (kind_ == Kind::kJson) {
    write(json_line({{"step", step.step},
                     {"loss", step.loss},
                     {"grad_norm", step.grad_norm},
                     {"learning_rate", step.learning_rate},
                     {unit_ + "_per_second", speed},
                     {"bubble", step.bubble_share},
                     {"memory_bytes", resident_bytes()},
                     {"seconds", step.seconds}}));
    return;
  }
  const bool is_last = step.step == steps_;
  if (kind_ == Kind::kLines && step.step % every_ != 0 && !is_last &&
      step.step != first_step_ + 1) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (kind_ == Kind::kTerminal && now - last_ < kRefresh && !is_last) return;
  last_ = now;
  const std::string line = fmt::format(
      "step {:>{}}/{}  loss {:.4f}  {:>6.0f} {}/s  bubble {:>4.1f} %  memory {:.2f} GiB  {}",
      step.step, std::to_string(steps_).size(), steps_, step.loss, tokens_per_second_, unit_,
      100 * step.bubble_share, static_cast<double>(resident_bytes()) / kGibibyte,
      is_last ? "done" : format_left(seconds_left(step)) + " left");
  if (kind_ == Kind::kTerminal) {
    write_over(line);
  } else {
    write(line + '\n');
  }
}

void Progress::evaluation(int64_t step, double loss) {
  if (kind_ == Kind::kJson) write(json_line({{"step", step}, {"eval_loss", loss}}));
  if (kind_ == Kind::kTerminal || kind_ == Kind::kLines) {
    say(fmt::format("step {:>{}}/{}  evaluation loss {:.4f}", step, std::to_string(steps_).size(),
                    steps_, loss));
  }
}

void Progress::sample(const std::string& prompt, const std::string& text) {
  if (kind_ == Kind::kJson) write(json_line({{"prompt", prompt}, {"sample", text}}));
  if (kind_ == Kind::kTerminal || kind_ == Kind::kLines) {
    say(fmt::format("sample:\n{}{}", printable(prompt), printable(text)));
  }
}

void Progress::stopped(int64_t step, const std::string& saved, const std::string& folder) {
  if (kind_ == Kind::kJson) {
    write(json_line(
        {{"stopped", step}, {"saved", saved.empty() ? OrderedJson() : OrderedJson(saved)}}));
  }
  const std::string where =
      saved.empty()
          ? "nothing was saved (--checkpoint FOLDER does that)"
          : fmt::format("saved {}; to continue: stagecraft train --resume {}", saved, folder);
  say(fmt::format("stopped after step {}: {}", step, where));
}

void Progress::say(const std::string& line) {
  if (kind_ == Kind::kQuiet || kind_ == Kind::kJson) return;
  end();
  write(line + '\n');
}

}  // namespace stagecraft::cli
