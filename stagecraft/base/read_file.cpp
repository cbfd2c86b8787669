#include "stagecraft/base/read_file.h"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/base/error.h"

namespace stagecraft {
namespace {

struct CloseUnlessInput {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

[[noreturn]] void fail_to_read(const std::string& path, int error) {
  throw FileError(fmt::format("cannot read {}: {}", path == "-" ? "standard input" : path,
                              std::strerror(error)));
}

}  // namespace

std::string read_file(const std::string& path) {
  const std::unique_ptr<std::FILE, CloseUnlessInput> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (!file) fail_to_read(path, errno);
  std::string text;
  std::vector<char> buffer(1U << 16U);
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), count);
  }
  if (std::ferror(file.get()) != 0) fail_to_read(path, errno);
  return text;
}

}  // namespace stagecraft
