#include "benchmarks/gloo_pair.h"

#include <array>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "stagecraft/transport/gloo/addresses.h"
#include "stagecraft/transport/gloo/gloo_group.h"
#include "stagecraft/transport/gloo/join.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft::bench {
namespace {

constexpr const char* kHere = "127.0.0.1";
constexpr std::chrono::milliseconds kTimeout{60'000};

struct Listener {
  int fd = -1;
  uint16_t port = 0;
};

Listener listen() {
  auto listener = detail::listen_on(kHere, 0);
  const uint16_t port = detail::port_of(listener);
  return {listener.release(), port};
}

c10::intrusive_ptr<c10d::Store> make_store(int rank, const Listener& listener) {
  c10d::TCPStoreOptions options;
  options.port = listener.port;
  options.isServer = rank == 0;
  options.numWorkers = 2;
  options.timeout = kTimeout;
  if (rank == 0) options.masterListenFd = listener.fd;
  return c10::make_intrusive<c10d::TCPStore>(kHere, options);
}

std::unique_ptr<detail::ByteTransport> join(int rank, const Listener& listener) {
  JoinOptions options;
  options.rank = Rank(rank);
  options.num_ranks = 2;
  options.port = listener.port;
  if (rank == 0) options.listen_fd = listener.fd;
  return detail::connect_gloo(options);
}

// Ping-pong with gloo's own calls, always from and into the same memory. Both sides post the next
// receive before they send.
void play_gloo(c10d::Backend& gloo, const Task& task) {
  const bool begins = gloo.getRank() == 0;
  const int other = begins ? 1 : 0;
  constexpr int kTag = 7;
  std::vector<at::Tensor> out = {at::ones({task.bytes}, at::kByte)};
  std::vector<at::Tensor> in = {at::empty({task.bytes}, at::kByte)};
  auto receive = gloo.recv(in, other, kTag);
  c10::intrusive_ptr<c10d::Work> send;
  const auto send_next = [&] {
    const auto last = std::exchange(send, gloo.send(out, other, kTag));
    if (last) last->wait();
  };
  for (int64_t i = 0; i < task.rounds; ++i) {
    if (begins) send_next();
    receive->wait();
    if (i + 1 < task.rounds) receive = gloo.recv(in, other, kTag);
    if (!begins) send_next();
  }
  if (send) send->wait();
}

}  // namespace

/// The end of one process: a group of gloo alone, and a world of ours.
class GlooPair::End {
 public:
  End(int rank, const std::array<Listener, 2>& listeners)
      : store_(make_store(rank, listeners[0])),
        raw_(detail::make_gloo_group(store_, Rank(rank), 2, kHere, kTimeout)),
        ours_(join(rank, listeners[1]), detail::WireOptions()) {}

  void run(const Task& task) {
    if (task.is_raw) {
      play_gloo(*raw_, task);
    } else {
      play(ours_, task, step_++);
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> raw_;
  detail::WireTransport ours_;
  uint64_t step_ = 0;
};

GlooPair::GlooPair() {
  const std::array<Listener, 2> listeners = {listen(), listen()};
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  child_ = fork();
  if (child_ == 0) {
    for (const Listener& listener : listeners) close(listener.fd);
    close(ends[1]);
    End end(1, listeners);
    Task task;
    while (read(ends[0], &task, sizeof(task)) == sizeof(task)) end.run(task);
    _exit(0);
  }
  close(ends[0]);
  to_child_ = ends[1];
  end_ = std::make_unique<End>(0, listeners);
}

GlooPair::~GlooPair() {
  close(to_child_);
  end_.reset();
  waitpid(child_, nullptr, 0);
}

double GlooPair::run(const Task& task) {
  if (write(to_child_, &task, sizeof(task)) != sizeof(task)) {
    throw std::runtime_error("the other process has ended");
  }
  const auto begin = std::chrono::steady_clock::now();
  end_->run(task);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace stagecraft::bench
