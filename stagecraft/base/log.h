#pragma once

#include <functional>
#include <optional>
#include <string_view>

namespace stagecraft {

/// The severity of a log line.
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Receives log lines. Called by one thread at a time. Must not call `log`.
using LogSink = std::function<void(LogLevel, std::string_view message)>;

/// Hands `message` to the sink if `level` is enabled. Thread-safe. The level comes from the
/// environment variable STAGECRAFT_LOG (debug, info, warning, error, off) when the first line is
/// logged. Without the variable nothing is logged. Any other value logs everything, after a warning
/// that names the value.
void log(LogLevel level, std::string_view message);

/// Logs a line that a user must see by default: at level kError, even if STAGECRAFT_LOG is not set.
/// Level "off" suppresses it.
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
