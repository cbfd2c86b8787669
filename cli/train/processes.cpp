#include "cli/train/processes.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include "cli/failure.h"
#include "cli/output.h"
#include "cli/train/interrupt.h"
#include "stagecraft/base/deadline.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/transport/world/launcher.h"

namespace stagecraft::cli {
namespace {

using namespace std::chrono_literals;

/// The variable with the descriptor to which rank 0 writes the numbers of its steps.
constexpr const char* kStepsVariable = "STAGECRAFT_STEPS_FD";
/// How long ranks may take to end by themselves after one has died. They notice a dead rank within
/// two seconds; after an interrupt they finish the step and save.
constexpr auto kPatienceAfterDeath = 20s;
constexpr auto kPatienceAfterInterrupt = 10min;

std::string last_error() {
  return std::strerror(errno);
}

/// A file descriptor that is closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (is_open()) ::close(std::exchange(number_, -1));
  }

 private:
  int number_;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", last_error()));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// A port that is free now. A different program may take it before rank 0 does. Then the ranks
/// cannot join, and report this.
uint16_t free_port() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.is_open() || ::bind(listener.get(), generic, size) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0) {
    throw Error(fmt::format("no free port was found: {}", last_error()));
  }
  return ntohs(address.sin_port);
}

/// The words of this program's command line without --processes and --restarts.
std::vector<std::string> words_of_rank(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--processes" || word == "--restarts") {
      ++i;
      continue;
    }
    if (word.starts_with("--processes=") || word.starts_with("--restarts=")) continue;
    words.emplace_back(word);
  }
  return words;
}

/// The words for a restart: they continue from the newest checkpoint.
std::vector<std::string> words_after_death(const std::vector<std::string>& words) {
  std::vector<std::string> resumed;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--resume") {
      ++i;
      continue;
    }
    if (!words[i].starts_with("--resume=")) resumed.push_back(words[i]);
  }
  resumed.insert(resumed.end(), {"--resume", "auto"});
  return resumed;
}

/// Reads the output of a rank and prints it line by line.
class Lines {
 public:
  Lines(Descriptor from, int32_t rank, std::FILE* to)
      : from_(std::move(from)), rank_(rank), to_(to) {}

  int descriptor() const { return from_.get(); }
  bool is_open() const { return from_.is_open(); }

  /// Prints the complete lines of the text that can be read now. At the end of the text, prints the
  /// rest.
  void pass_on() {
    char bytes[4096];
    const ssize_t count = ::read(from_.get(), bytes, sizeof(bytes));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count > 0) rest_.append(bytes, static_cast<std::size_t>(count));
    for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
      print(std::string_view(rest_).substr(0, end));
      rest_.erase(0, end + 1);
    }
    if (count > 0) return;
    if (!rest_.empty()) print(std::exchange(rest_, {}));
    from_.close();
  }

 private:
  void print(std::string_view line) {
    const std::string text = fmt::format("rank {}: {}\n", rank_, line);
    // Errors of the write are ignored: training must not end because its output is not read.
    std::fwrite(text.data(), 1, text.size(), to_);
    std::fflush(to_);
  }

  Descriptor from_;
  int32_t rank_;
  std::FILE* to_;
  std::string rest_;
};

/// The number of the last step that rank 0 has reported.
class LastStep {
 public:
  explicit LastStep(Descriptor from) : from_(std::move(from)) {}

  int descriptor() const { return from_.get(); }
  bool is_open() const { return from_.is_open(); }
  std::optional<int64_t> get() const { return step_; }

  void read() {
    int64_t steps[64];
    const ssize_t count = ::read(from_.get(), steps, sizeof(steps));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    const auto whole = static_cast<std::size_t>(std::max<ssize_t>(count, 0)) / sizeof(steps[0]);
    if (whole > 0) step_ = steps[whole - 1];
    if (count <= 0) from_.close();
  }

 private:
  Descriptor from_;
  std::optional<int64_t> step_;
};

struct RankProcess {
  pid_t id = 0;
  std::optional<int> status = std::nullopt;  // of waitpid, when it has ended

  bool has_ended() const { return status.has_value(); }
  bool has_failed() const { return status && *status != 0; }
  bool was_killed() const { return status && WIFSIGNALED(*status); }
  int exit_status() const { return WEXITSTATUS(*status); }
};

std::string describe_end(const RankProcess& process) {
  const int status = *process.status;
  if (!WIFSIGNALED(status)) return fmt::format("ended with exit status {}", WEXITSTATUS(status));
  return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                     ::strsignal(WTERMSIG(status)));
}

/// All ranks, from their start to the end of the last one.
class RankProcesses {
 public:
  RankProcesses(const std::vector<std::string>& words, int32_t num_ranks) : processes_(num_ranks) {
    const std::string port = std::to_string(free_port());
    Pipe steps = make_pipe();
    last_step_.emplace(std::move(steps.read));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      start(words, rank, port, rank == 0 ? steps.write.get() : -1);
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    signal_all(SIGKILL);
    for (RankProcess& process : processes_) {
      if (!process.has_ended()) ::waitpid(process.id, nullptr, 0);
    }
  }

  /// Returns when all ranks have ended. After a death, ranks that do not end by themselves are
  /// killed.
  void watch() {
    std::optional<Deadline> limit;
    bool is_passed_on = false;
    while (!have_all_ended()) {
      pass_on(50ms);
      note_ends();
      const int signal = noted_interrupt();
      if (signal != 0 && !is_passed_on) {
        is_passed_on = true;
        signal_all(signal);
        limit = Deadline::after(kPatienceAfterInterrupt);
      }
      if (first_dead_ && !limit) limit = Deadline::after(kPatienceAfterDeath);
      if (limit && limit->has_passed()) signal_all(SIGKILL);
    }
    while (pass_on(0ms)) {
    }
  }

  /// The rank whose end caused the end of the others: the first that was killed, otherwise the
  /// first that failed.
  std::optional<int32_t> first_dead() const { return first_dead_; }
  const RankProcess& process(int32_t rank) const {
    return processes_[static_cast<std::size_t>(rank)];
  }
  std::optional<int64_t> last_step() const { return last_step_->get(); }

 private:
  void start(const std::vector<std::string>& words, int32_t rank, const std::string& port,
             int steps) {
    Pipe out = make_pipe();
    Pipe err = make_pipe();
    const std::string rank_text = std::to_string(rank);
    const std::string size = std::to_string(processes_.size());
    const std::string steps_text = std::to_string(steps);
    std::vector<char*> arguments = {const_cast<char*>("stagecraft-train")};
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t id = ::fork();
    if (id < 0) throw Error(fmt::format("rank {} cannot be started: {}", rank, last_error()));
    if (id == 0) {
      // A process group of its own: Ctrl-C of the terminal reaches it through the parent alone.
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kFailed);
      ::dup2(out.write.get(), STDOUT_FILENO);
      ::dup2(err.write.get(), STDERR_FILENO);
      ::setenv("RANK", rank_text.c_str(), 1);
      ::setenv("WORLD_SIZE", size.c_str(), 1);
      ::setenv("LOCAL_RANK", rank_text.c_str(), 1);
      ::setenv("LOCAL_WORLD_SIZE", size.c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", port.c_str(), 1);
      if (steps >= 0) {
        ::fcntl(steps, F_SETFD, 0);
        ::setenv(kStepsVariable, steps_text.c_str(), 1);
      }
      ::execv("/proc/self/exe", arguments.data());
      ::_exit(kFailed);
    }
    processes_[static_cast<std::size_t>(rank)].id = id;
    lines_.emplace_back(std::move(out.read), rank, stdout);
    lines_.emplace_back(std::move(err.read), rank, stderr);
  }

  bool have_all_ended() const {
    return std::all_of(processes_.begin(), processes_.end(),
                       [](const RankProcess& process) { return process.has_ended(); });
  }

  void signal_all(int signal) {
    for (const RankProcess& process : processes_) {
      if (process.id > 0 && !process.has_ended()) ::kill(process.id, signal);
    }
  }

  void note_ends() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      RankProcess& process = processes_[rank];
      int status = 0;
      if (process.has_ended() || ::waitpid(process.id, &status, WNOHANG) != process.id) continue;
      process.status = status;
      // A rank that ends because a different rank was killed may be seen before the killed one.
      const bool is_first =
          !first_dead_ || (process.was_killed() &&
                           !processes_[static_cast<std::size_t>(*first_dead_)].was_killed());
      if (process.has_failed() && is_first) first_dead_ = static_cast<int32_t>(rank);
    }
  }

  /// Prints output of the ranks. Returns whether anything could be read within `wait`.
  bool pass_on(std::chrono::milliseconds wait) {
    std::vector<pollfd> polled;
    for (const Lines& lines : lines_) polled.push_back({lines.descriptor(), POLLIN, 0});
    polled.push_back({last_step_->descriptor(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), static_cast<int>(wait.count())) <= 0) return false;
    bool any = false;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (polled[i].revents == 0 || !lines_[i].is_open()) continue;
      lines_[i].pass_on();
      any = true;
    }
    if (polled.back().revents != 0 && last_step_->is_open()) {
      last_step_->read();
      any = true;
    }
    return any;
  }

  std::vector<RankProcess> processes_;
  std::vector<Lines> lines_;
  std::optional<LastStep> last_step_;
  std::optional<int32_t> first_dead_;
};

/// "; continuing after step 100 of run: 20 steps are lost (restart 1 of 5)".
std::string describe_restart(const RankProcesses& world, const TrainCommand& command,
                             int32_t restart) {
  const std::vector<std::string> all = list_checkpoints(command.checkpoint);
  const int64_t saved = all.empty() ? 0 : step_of_checkpoint(all.back());
  const int64_t lost = std::max<int64_t>(world.last_step().value_or(saved) - saved, 0);
  return fmt::format("; continuing {}: {} step{} lost (restart {} of {})",
                     all.empty() ? "from the beginning"
                                 : fmt::format("after step {} of {}", saved, command.checkpoint),
                     lost, lost == 1 ? " is" : "s are", restart, command.restarts);
}

}  // namespace

int train_on_processes(const TrainCommand& command, int argc, char** argv) {
  if (const auto launch = detail::find_launch()) {
    throw BadUsage(
        fmt::format("--processes starts the ranks itself, but {} has started this "
                    "process: use one of the two",
                    detail::name_of(launch->kind)));
  }
  note_interrupts();
  std::vector<std::string> words = words_of_rank(argc, argv);
  for (int32_t restart = 1;; ++restart) {
    RankProcesses world(words, command.processes);
    world.watch();
    if (noted_interrupt() != 0) return 128 + noted_interrupt();
    const auto dead = world.first_dead();
    if (!dead) return kGood;
    const RankProcess& process = world.process(*dead);
    // The exit statuses 130 and 143 mean that a signal asked a rank to end, and that all ranks
    // ended after the same step.
    const bool is_final = !process.was_killed() &&
                          (process.exit_status() == kBadUsage ||
                           process.exit_status() == kNotSaved || process.exit_status() > 128);
    if (is_final) return process.exit_status();
    const std::string end =
        fmt::format("rank {} {}{}", *dead, describe_end(process),
                    world.last_step() ? fmt::format(" after step {}", *world.last_step()) : "");
    if (restart > command.restarts) {
      print_error(end);
      return kFailed;
    }
    print_error(end + describe_restart(world, command, restart));
    words = words_after_death(words);
  }
}

void tell_step(int64_t step) {
  static const int descriptor = [] {
    const char* const text = std::getenv(kStepsVariable);
    int number = -1;
    if (text != nullptr) std::from_chars(text, text + std::strlen(text), number);
    return number;
  }();
  if (descriptor < 0) return;
  // A write of these few bytes to a pipe is atomic. It fails if the parent process has ended, which
  // is ignored.
  [[maybe_unused]] const ssize_t written = ::write(descriptor, &step, sizeof(step));
}

}  // namespace stagecraft::cli
