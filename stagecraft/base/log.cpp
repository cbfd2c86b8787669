#include "stagecraft/base/log.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace stagecraft {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"debug", "info", "warning", "error", "off"};

void write_to_stderr(LogLevel level, std::string_view message) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  const std::string line =
      fmt::format("stagecraft {} {:02}:{:02}:{:02}.{:03} {}\n", to_string(level), local.tm_hour,
                  local.tm_min, local.tm_sec, millis, message);
  std::fputs(line.c_str(), stderr);
}

struct State {
  std::mutex mutex;
  LogSink sink = write_to_stderr;
  std::atomic<LogLevel> level = LogLevel::kOff;
  std::atomic<bool> is_chosen = false;  // by the program or the environment

  State() {
    const char* name = std::getenv("STAGECRAFT_LOG");
    if (name == nullptr || *name == '\0') return;
    is_chosen = true;
    if (const auto parsed = parse_log_level(name)) {
      level = *parsed;
      return;
    }
    level = LogLevel::kDebug;
    sink(LogLevel::kWarning, fmt::format("STAGECRAFT_LOG is \"{}\"; expected debug, info, warning, "
                                         "error or off; logging everything",
                                         name));
  }
};

// Never destroyed: threads may log while the program ends.
State& state() {
  static State* const state = new State;
  return *state;
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sink(level, message);
}

void announce(std::string_view message) {
  State& s = state();
  if (s.is_chosen && s.level == LogLevel::kOff) return;
  const std::lock_guard lock(s.mutex);
  s.sink(LogLevel::kError, message);
}

bool log_enabled(LogLevel level) {
  return level != LogLevel::kOff && level >= state().level.load(std::memory_order_relaxed);
}

void set_log_level(LogLevel level) {
  state().level = level;
  state().is_chosen = true;
}

void set_log_sink(LogSink sink) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sink = sink ? std::move(sink) : LogSink(write_to_stderr);
}

std::optional<LogLevel> parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::string_view to_string(LogLevel level) {
  return kNames.at(static_cast<std::size_t>(level));
}

}  // namespace stagecraft
