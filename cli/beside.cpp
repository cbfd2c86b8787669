#include "cli/beside.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/torch_libraries.h"

namespace stagecraft::cli {

void run_beside(const char* name, char** argv) {
  std::error_code error;
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name).string();
  std::vector<char*> arguments = {const_cast<char*>(name)};
  for (; *argv != nullptr; ++argv) arguments.push_back(*argv);
  arguments.push_back(nullptr);
  provide_torch_libraries(program);
  std::signal(SIGPIPE, SIG_DFL);
  ::execv(program.c_str(), arguments.data());
  const int why = errno;
  throw BadUsage(why == ENOENT
                     ? fmt::format("{} is not next to this program: it needs a build with torch "
                                   "(STAGECRAFT_TORCH=ON)",
                                   name)
                     : fmt::format("cannot start {}: {}", program, std::strerror(why)));
}

}  // namespace stagecraft::cli
