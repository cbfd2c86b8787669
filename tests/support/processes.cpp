#include "tests/support/processes.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <poll.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;
int words_to_parent = -1;

// Leaves without running what belongs to the parent.
[[noreturn]] void run_child(const std::function<void(int32_t)>& body, int32_t i, int result) {
  const auto begin = Clock::now();
  const int failures =
      testing::UnitTest::GetInstance()->current_test_info() == nullptr
          ? 0
          : testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
  std::string text = "returned\n\n";
  try {
    body(i);
  } catch (const std::exception& error) {
    text = "threw\n" + type_of(error) + "\n" + error.what();
  }
  const auto* const info = testing::UnitTest::GetInstance()->current_test_info();
  if (info != nullptr && info->result()->total_part_count() > failures) text = "failed\n\n";
  text = std::to_string(std::chrono::duration<double>(Clock::now() - begin).count()) + "\n" + text;
  std::fflush(nullptr);
  const auto written = write(result, text.data(), text.size());
  _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  return ends;
}

bool wait_readable(int fd, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(left)) > 0) return true;
  }
}

}  // namespace

Processes::Processes(int32_t count, const std::function<void(int32_t)>& body,
                     std::chrono::seconds limit)
    : deadline_(Clock::now() + limit) {
  std::fflush(nullptr);
  for (int32_t i = 0; i < count; ++i) {
    const auto words = make_pipe();
    const auto result = make_pipe();
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      for (const Child& child : children_) {
        close(child.words);
        close(child.result);
      }
      close(words[0]);
      close(result[0]);
      words_to_parent = words[1];
      run_child(body, i, result[1]);
    }
    close(words[1]);
    close(result[1]);
    children_.push_back({pid, words[0], result[0]});
  }
}

Processes::~Processes() {
  for (Child& child : children_) end_one(child);
}

void Processes::end_one(Child& child, bool has_ended) {
  if (child.pid <= 0) return;
  // What has closed its pipe is about to end by itself, and then says why.
  int status = 0;
  const auto patience = Clock::now() + std::chrono::milliseconds(200);
  pid_t ended = 0;
  while (has_ended && ended == 0 && Clock::now() < patience) {
    ended = waitpid(child.pid, &status, WNOHANG);
    if (ended == 0) usleep(100);
  }
  if (ended == 0) {
    kill(child.pid, SIGKILL);
    waitpid(child.pid, &status, 0);
  }
  last_signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  close(child.words);
  close(child.result);
  child.pid = -1;
}

void Processes::signal(int32_t i, int number) const {
  kill(pid(i), number);
}

void Processes::tell_parent() {
  if (write(words_to_parent, "x", 1) != 1) _exit(1);
}

void Processes::wait_for_word(int32_t i) {
  const int fd = children_[static_cast<std::size_t>(i)].words;
  char word = 0;
  if (!wait_readable(fd, deadline_) || read(fd, &word, 1) != 1) {
    throw std::runtime_error("process " + std::to_string(i) + " did not say a word");
  }
}

ProcessEnd Processes::wait_one(Child& child) {
  std::string text;
  std::array<char, 4096> buffer{};
  ProcessEnd end;
  for (;;) {
    if (!wait_readable(child.result, deadline_)) {
      end.kind = ProcessEnd::Kind::kHung;
      end_one(child);
      return end;
    }
    const auto got = read(child.result, buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  end_one(child, /*has_ended=*/true);
  if (text.empty()) {
    end.kind = ProcessEnd::Kind::kKilled;
    end.message = "signal " + std::to_string(last_signal_);
    return end;
  }
  const auto next = [&] {
    const auto stop = text.find('\n');
    std::string line = text.substr(0, stop);
    text.erase(0, stop == std::string::npos ? stop : stop + 1);
    return line;
  };
  end.seconds = std::stod(next());
  const std::string how = next();
  if (how == "threw") end.kind = ProcessEnd::Kind::kThrew;
  if (how == "failed") end.kind = ProcessEnd::Kind::kFailed;
  end.type = next();
  end.message = text;
  return end;
}

std::vector<ProcessEnd> Processes::wait(const std::vector<int32_t>& except) {
  std::vector<ProcessEnd> ends(children_.size());
  for (std::size_t i = 0; i < children_.size(); ++i) {
    bool is_excepted = false;
    for (const int32_t other : except) is_excepted |= other == static_cast<int32_t>(i);
    if (!is_excepted) ends[i] = wait_one(children_[i]);
  }
  for (const int32_t i : except) {
    end_one(children_[static_cast<std::size_t>(i)]);
    ends[static_cast<std::size_t>(i)].kind = ProcessEnd::Kind::kKilled;
  }
  return ends;
}

std::string type_of(const std::exception& error) {
  if (dynamic_cast<const PeerError*>(&error) != nullptr) return "PeerError";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "TimeoutError";
  if (dynamic_cast<const ArgumentError*>(&error) != nullptr) return "ArgumentError";
  if (dynamic_cast<const MetadataError*>(&error) != nullptr) return "MetadataError";
  if (dynamic_cast<const StageError*>(&error) != nullptr) return "StageError";
  if (dynamic_cast<const std::out_of_range*>(&error) != nullptr) return "out_of_range";
  return "exception";
}

void rethrow(const ProcessEnd& end) {
  if (end.type == "PeerError") throw PeerError(end.message, Rank(-1));
  if (end.type == "TimeoutError") throw TimeoutError(end.message);
  if (end.type == "ArgumentError") throw ArgumentError(end.message);
  if (end.type == "MetadataError") throw MetadataError(end.message);
  if (end.type == "out_of_range") throw std::out_of_range(end.message);
  throw std::runtime_error(end.message);
}

void judge_ends(const std::vector<ProcessEnd>& ends) {
  const ProcessEnd* first = nullptr;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto& end = ends[i];
    EXPECT_NE(end.kind, ProcessEnd::Kind::kFailed) << "on rank " << i << ", see above";
    EXPECT_NE(end.kind, ProcessEnd::Kind::kKilled) << "rank " << i << " died: " << end.message;
    EXPECT_NE(end.kind, ProcessEnd::Kind::kHung) << "rank " << i;
    if (end.kind != ProcessEnd::Kind::kThrew) continue;
    if (first == nullptr || first->type == "PeerError") first = &end;
  }
  if (first != nullptr) rethrow(*first);
}

}  // namespace stagecraft
