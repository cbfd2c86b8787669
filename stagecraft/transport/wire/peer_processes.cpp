#include "stagecraft/transport/wire/peer_processes.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include "stagecraft/base/log.h"
#include "stagecraft/base/thread_name.h"

namespace stagecraft::detail {
namespace {

std::string read_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

std::string read_link(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::read_symlink(path, ignored).string();
}

// The start time is field 22 of /proc/PID/stat. Field 2, the name, may contain spaces and
// parentheses. 0: unknown.
uint64_t start_of(int64_t pid) {
  const auto line = read_line("/proc/" + std::to_string(pid) + "/stat");
  auto at = line.rfind(')');
  if (at == std::string::npos) return 0;
  ++at;
  for (int field = 3; field < 22; ++field) {
    at = line.find(' ', at + 1);
    if (at == std::string::npos) return 0;
  }
  return std::strtoull(line.c_str() + at, nullptr, 10);
}

enum class Opened { kIsThere, kHasEnded, kUnknown };

Opened open_process(const ProcessName& process, int& fd) {
#ifdef SYS_pidfd_open
  fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0U));
  if (fd < 0) return errno == ESRCH ? Opened::kHasEnded : Opened::kUnknown;
  // Read after the descriptor was opened: otherwise the PID could be reused in between, and a
  // different process would be watched.
  const uint64_t start = start_of(process.pid);
  // A start time is unknown if /proc is hidden or no file can be opened.
  if (start == process.start || start == 0 || process.start == 0) return Opened::kIsThere;
  close(fd);
  fd = -1;
  return Opened::kHasEnded;
#else
  static_cast<void>(process);
  fd = -1;
  return Opened::kUnknown;
#endif
}

}  // namespace

ProcessName ProcessName::of_this() {
  return {read_line("/proc/sys/kernel/random/boot_id"), read_link("/proc/self/ns/pid"), getpid(),
          start_of(getpid())};
}

bool has_ended(const ProcessName& process) {
  if (!ProcessName::of_this().is_near(process)) return false;
  int fd = -1;
  const auto opened = open_process(process, fd);
  if (opened != Opened::kIsThere) return opened == Opened::kHasEnded;
  pollfd entry{fd, POLLIN, 0};
  const bool is_over = poll(&entry, 1, 0) > 0;
  close(fd);
  return is_over;
}

PeerProcesses::PeerProcesses(const std::vector<ProcessName>& processes, Rank self,
                             std::function<void(Rank)> on_ended)
    : on_ended_(std::move(on_ended)) {
  const ProcessName& here = processes[self.position()];
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const Rank rank(static_cast<int32_t>(i));
    if (rank == self || !here.is_near(processes[i])) continue;
    int fd = -1;
    const auto opened = open_process(processes[i], fd);
    if (opened == Opened::kUnknown) {
      log(LogLevel::kInfo, "the process of rank " + to_string(rank) + " cannot be watched");
      continue;
    }
    watched_.push_back({rank, fd});
  }
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0) log(LogLevel::kWarning, "the processes of other ranks cannot be watched");
  thread_ = std::thread([this] { run(); });
}

PeerProcesses::~PeerProcesses() {
  if (stop_ >= 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(stop_, &one, sizeof(one));
  }
  thread_.join();
  if (stop_ >= 0) close(stop_);
  for (const auto& watched : watched_) {
    if (watched.fd >= 0) close(watched.fd);
  }
}

void PeerProcesses::run() {
  name_thread("sc watch");
  for (const auto& watched : watched_) {
    if (watched.fd < 0) on_ended_(watched.rank);
  }
  // Without this descriptor the wait could not be ended.
  if (stop_ < 0) return;
  for (;;) {
    // poll ignores negative descriptors, so processes that have ended keep their places.
    std::vector<pollfd> entries = {{stop_, POLLIN, 0}};
    for (const auto& watched : watched_) entries.push_back({watched.fd, POLLIN, 0});
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[0].revents != 0) return;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      close(std::exchange(watched_[i].fd, -1));
      on_ended_(watched_[i].rank);
    }
  }
}

}  // namespace stagecraft::detail
