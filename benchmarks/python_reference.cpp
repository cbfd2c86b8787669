#include "benchmarks/python_reference.h"

#include <array>
#include <cstdlib>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "stagecraft/base/error.h"

namespace stagecraft::bench {
namespace {

constexpr int kDeadlineMs = 120'000;
constexpr int kFarewellMs = 2'000;

}  // namespace

PythonReference::PythonReference(const std::string& script,
                                 const std::vector<std::string>& arguments) {
  std::array<int, 2> down{};
  std::array<int, 2> up{};
  if (pipe(down.data()) != 0 || pipe(up.data()) != 0) throw Error("cannot make a pipe");
  signal(SIGPIPE, SIG_IGN);  // a dead child is an error that we report, not our end
  std::vector<std::string> words = {SC_BENCH_PYTHON, SC_BENCH_SCRIPTS "/" + script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  child_ = fork();
  if (child_ < 0) throw Error("cannot fork");
  if (child_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    for (const int fd : {down[0], down[1], up[0], up[1]}) close(fd);
    execv(argv[0], argv.data());
    _exit(127);
  }
  setpgid(child_, child_);
  close(down[0]);
  close(up[1]);
  to_child_ = down[1];
  from_child_ = up[0];
}

PythonReference::~PythonReference() {
  // The end of its input tells it to clean up and leave.
  close(to_child_);
  close(from_child_);
  for (int waited = 0; waited < kFarewellMs; waited += 10) {
    if (waitpid(child_, nullptr, WNOHANG) != 0) {
      kill(-child_, SIGKILL);  // processes that it may have left
      return;
    }
    usleep(10'000);
  }
  // Ends all processes that it has started, because they may hold this program's output open.
  kill(-child_, SIGTERM);
  usleep(kFarewellMs * 100);
  kill(-child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

Timed PythonReference::run(const std::string& name) {
  return [this, name](int iterations) {
    const std::string request = fmt::format("{} {}\n", name, iterations);
    if (write(to_child_, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
      throw Error(fmt::format("{}: the Python process is gone", name));
    }
    const std::string answer = read_line();
    char* end = nullptr;
    const double seconds = std::strtod(answer.c_str(), &end);
    if (answer.empty() || *end != '\0') {
      throw Error(fmt::format("{}: expected seconds from Python, got \"{}\"", name, answer));
    }
    return seconds;
  };
}

std::string PythonReference::read_line() {
  while (unread_.find('\n') == std::string::npos) {
    pollfd ready{from_child_, POLLIN, 0};
    if (poll(&ready, 1, kDeadlineMs) <= 0) throw Error("the Python process does not answer");
    std::array<char, 256> buffer{};
    const ssize_t count = read(from_child_, buffer.data(), buffer.size());
    if (count <= 0) throw Error("the Python process ended; its own message is above");
    unread_.append(buffer.data(), static_cast<std::size_t>(count));
  }
  const auto end = unread_.find('\n');
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return line;
}

}  // namespace stagecraft::bench
