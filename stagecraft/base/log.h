#pragma once

#include <functional>
#include <optional>
#include <string_view>

namespace stagecraft {

/// How much a log line matters.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Where log lines go. Called by one thread at a time; must not log itself.
using LogSink = std::function<void(LogLevel, std::string_view message)>;

/// Hands `message` to the sink if `level` is enabled. Thread-safe. The level comes from the
/// environment variable STAGECRAFT_LOG (debug, info, warning, error, off) when the first line is
/// logged; without it nothing is logged. A value that is none of these logs everything and says so.
void log(LogLevel level, std::string_view message);

/// Logs a line that a user must see by default: at level kError, even if STAGECRAFT_LOG is not set;
/// but not if the level is "off".
void announce(std::string_view message);

/// Whether `log(level, ...)` would do anything: ask before building an expensive message.
bool log_enabled(LogLevel level);

/// Overrides the environment.
void set_log_level(LogLevel level);

/// Replaces the sink; an empty function restores the default, one line on standard error:
/// "stagecraft warning 14:03:22.118 message".
void set_log_sink(LogSink sink);

/// "debug" to kDebug and so on; nothing for any other text.
std::optional<LogLevel> parse_log_level(std::string_view name);
std::string_view to_string(LogLevel level);

}  // namespace stagecraft
