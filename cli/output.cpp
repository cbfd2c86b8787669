#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/failure.h"
#include "stagecraft/base/write_file.h"

namespace stagecraft::cli {
namespace {

/// Writes the text. Returns 0, or the errno of the failure.
int write_all(std::FILE* file, std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (written && std::fflush(file) == 0) return 0;
  return errno == 0 ? EIO : errno;
}

}  // namespace

void write_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    const int error = write_all(stdout, text);
    if (error != 0 && error != EPIPE) {
      throw BadUsage(fmt::format("cannot write standard output: {}", std::strerror(error)));
    }
    return;
  }
  try {
    write_file(path, text);
  } catch (const Error& error) {
    throw BadUsage(error.what());
  }
}

std::optional<int32_t> terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

void print_error(std::string_view message) {
  std::string line = "stagecraft: ";
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "; ";
    } else if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace stagecraft::cli
