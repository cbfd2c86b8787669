#include "stagecraft/base/write_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>

#include "stagecraft/base/error.h"

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

[[noreturn]] void fail(const std::string& path, int error) {
  throw FileError(fmt::format("cannot write {}: {}", path, std::strerror(error)));
}

/// The errno of the failure; 0 if there was none.
int write_all(std::FILE* file, std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (written && std::fflush(file) == 0) return 0;
  return errno == 0 ? EIO : errno;
}

/// Renaming a new file to the name of a device or pipe would replace it by a regular file.
void write_in_place(const std::string& path, std::string_view text) {
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) fail(path, errno);
  const int error = write_all(file.get(), text);
  if (error != 0 && error != EPIPE) fail(path, error);
  if (std::fclose(file.release()) != 0) fail(path, errno);
}

void write_and_rename(const std::string& path, std::string_view text) {
  std::error_code ignored;
  const fs::path target =
      fs::is_symlink(path, ignored) ? fs::weakly_canonical(path, ignored) : fs::path(path);
  const std::string scratch = fmt::format("{}.{}.part", target.string(), getpid());
  File file(std::fopen(scratch.c_str(), "wb"));
  if (!file) fail(path, errno);
  int error = write_all(file.get(), text);
  if (std::fclose(file.release()) != 0 && error == 0) error = errno;
  const fs::file_status before = fs::status(target, ignored);
  if (error == 0 && fs::exists(before)) fs::permissions(scratch, before.permissions(), ignored);
  if (error == 0 && std::rename(scratch.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    std::remove(scratch.c_str());
    fail(path, error);
  }
}

}  // namespace

void write_file(const std::string& path, std::string_view text) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    write_in_place(path, text);
  } else {
    write_and_rename(path, text);
  }
}

}  // namespace stagecraft
