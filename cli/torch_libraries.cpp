#include "cli/torch_libraries.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <string_view>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <spawn.h>

#include "cli/failure.h"

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kPatienceMs = 10'000;
constexpr const char* kFolderVariable = "STAGECRAFT_TORCH_LIB";
constexpr const char* kPythonVariable = "STAGECRAFT_PYTHON";
/// The version of torch that the programs next to this one were built with; empty without them.
constexpr std::string_view kBuiltWith = SC_TORCH_VERSION;

/// The standard output of a program that succeeds; nothing if the program fails or takes too long.
std::optional<std::string> output_of(std::vector<std::string> words,
                                     std::vector<std::string> more_environment = {}) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (std::string& entry : more_environment) environment.push_back(entry.data());
  for (char** entry = ::environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  pid_t child = -1;
  const int failure =
      ::posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  std::string output;
  ssize_t got = failure == 0 ? 1 : 0;
  while (got > 0) {
    pollfd ready{ends[0], POLLIN, 0};
    std::array<char, 4096> block{};
    got = ::poll(&ready, 1, kPatienceMs) > 0 ? ::read(ends[0], block.data(), block.size()) : -1;
    if (got > 0) output.append(block.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  if (failure != 0) return std::nullopt;
  if (got < 0) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return output;
}

/// Whether the loader misses libraries of torch for the program. Asks the loader as ldd does.
bool lacks_torch(const std::string& program) {
  std::istringstream lines(output_of({program}, {"LD_TRACE_LOADED_OBJECTS=1"}).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const bool is_torch =
        line.find("libtorch") != std::string::npos || line.find("libc10") != std::string::npos;
    if (is_torch && line.find("=> not found") != std::string::npos) return true;
  }
  return false;
}

std::optional<std::string> environment_value(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

/// The folder of torch's libraries of a Python. torch is not imported, because this would take
/// seconds.
std::optional<std::string> folder_of_python(const std::string& python) {
  std::optional<std::string> folder =
      output_of({python, "-c",
                 "import importlib.util, os\n"
                 "print(os.path.dirname(importlib.util.find_spec('torch').origin), end='/lib')"});
  if (folder && !fs::exists(*folder + "/libtorch_cpu.so")) return std::nullopt;
  return folder;
}

/// "2.13" for "2.13.0+cpu".
std::string_view minor_of(std::string_view version) {
  const std::size_t dot = version.find('.');
  if (dot == std::string_view::npos) return version;
  return version.substr(0, version.find_first_not_of("0123456789", dot + 1));
}

/// The version of the wheel that the folder is part of; nothing if it is not part of a wheel.
std::optional<std::string> version_in(const std::string& folder) {
  std::ifstream file(fs::path(folder) / "../version.py");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("__version__")) continue;
    const std::size_t begin = line.find('\'');
    const std::size_t end = line.rfind('\'');
    if (begin < end) return line.substr(begin + 1, end - begin - 1);
  }
  return std::nullopt;
}

void put_first(const std::string& folder) {
  const std::optional<std::string> version = version_in(folder);
  if (version && minor_of(*version) != minor_of(kBuiltWith)) {
    throw BadUsage(
        fmt::format("this stagecraft was built with torch {}; {} has {}: name a "
                    "different torch in {} (a Python) or {} (a folder)",
                    minor_of(kBuiltWith), folder, *version, kPythonVariable, kFolderVariable));
  }
  const std::optional<std::string> others = environment_value("LD_LIBRARY_PATH");
  ::setenv("LD_LIBRARY_PATH", (others ? folder + ":" + *others : folder).c_str(), 1);
}

}  // namespace

void provide_torch_libraries(const std::string& program) {
  if (kBuiltWith.empty()) return;
  if (const auto folder = environment_value(kFolderVariable)) {
    if (!fs::exists(*folder + "/libtorch_cpu.so")) {
      throw BadUsage(
          fmt::format("{}={}: there is no libtorch_cpu.so in it", kFolderVariable, *folder));
    }
    return put_first(*folder);
  }
  if (!lacks_torch(program)) return;
  const std::string python = environment_value(kPythonVariable).value_or("python3");
  const std::optional<std::string> folder = folder_of_python(python);
  if (!folder) {
    throw BadUsage(
        fmt::format("{} needs torch {}, which {} does not have: name a Python "
                    "that has it in {}, or the folder of its libraries in {}",
                    fs::path(program).filename().string(), minor_of(kBuiltWith), python,
                    kPythonVariable, kFolderVariable));
  }
  put_first(*folder);
}

}  // namespace stagecraft::cli
