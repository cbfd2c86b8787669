#include "stagecraft/transport/mpi/mpi_byte_transport.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/transport/wire/frame.h"

namespace stagecraft::detail {
namespace {

// How long the last sends may take to complete.
constexpr auto kLeaveTime = std::chrono::milliseconds(500);

// Tags go up to 2^28 - 1, and the wire protocol uses 16 bits of them. So 4096 worlds have different
// tags, then the numbers repeat.
constexpr uint64_t kWorlds = (kLastMpiTag + 1) / (kLastTag + 1);

// A name that only one process of a machine can hold at a time: an abstract socket address, which
// the system frees when the process ends.
class Claim {
 public:
  Claim() = default;
  ~Claim() {
    for (const int fd : held_) close(fd);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  bool take(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // An abstract address begins with a zero byte.
    const auto size = name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
    const bool is_mine =
        fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0;
    if (is_mine) {
      held_.push_back(fd);
    } else if (fd >= 0) {
      close(fd);
    }
    return is_mine;
  }

 private:
  std::vector<int> held_;
};

class MpiByteTransport final : public ByteTransport {
 public:
  MpiByteTransport(MpiProgress& progress, void* group, Rank rank, uint64_t world,
                   std::vector<ProcessName> processes)
      : progress_(progress),
        group_(group),
        rank_(rank),
        first_tag_(static_cast<Tag>(world % kWorlds) * (kLastTag + 1)),
        processes_(std::move(processes)),
        is_lost_(static_cast<int32_t>(processes_.size())) {
    progress_.open_group();
  }

  ~MpiByteTransport() override {
    // First: the watcher calls functions of this object.
    watcher_.reset();
    progress_.close_group(group_, is_any_lost_, Deadline::after(kLeaveTime));
  }

  Rank rank() const override { return rank_; }
  int32_t num_ranks() const override { return static_cast<int32_t>(processes_.size()); }

  WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) override {
    require_there(to);
    return progress_.send(group_, to, first_tag_ + tag, bytes);
  }
  WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) override {
    require_there(from);
    return progress_.receive(group_, from, first_tag_ + tag, bytes);
  }

  bool prefers_polling() const override { return true; }

  void watch(Watch watch) override {
    watcher_.reset();
    if (!watch.on_ended) return;
    watcher_ = std::make_unique<PeerProcesses>(processes_, rank_,
                                               [this, watch = std::move(watch)](Rank other) {
                                                 if (watch.has_left(other)) return;
                                                 announce(other);
                                                 watch.on_ended(other);
                                               });
  }

  void set_failed() override { progress_.set_failed(); }

  void forget(Rank other) override {
    // Marked before transfers are given up: a transfer that is posted in between would never end.
    if (is_lost_[other].exchange(true)) return;
    is_any_lost_ = true;
    progress_.set_unfinishable();
    progress_.give_up(group_, other);
  }

 private:
  void require_there(Rank other) const {
    if (is_lost_[other]) {
      throw std::runtime_error("the connection is lost");
    }
  }

  // MPICH's mpirun ends the job within a millisecond and does not report which rank died. So the
  // first rank of this machine that detects the death prints a line. Open MPI's mpirun names the
  // rank itself.
  void announce(Rank lost) {
    if (progress_.kind() != MpiKind::kMpich) return;
    // The claimed name does not contain the lost rank: when the launcher ends the job all ranks
    // die, and only the first loss is reported.
    const auto& first = processes_.front();
    if (!claim_.take(fmt::format("stagecraft lost {}/{}", first.pid, first.start))) return;
    const auto line =
        fmt::format("stagecraft: rank {} is lost: its process has ended\n", lost.value());
    // One system call, without a buffer: mpirun may kill this process at any moment.
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  }

  MpiProgress& progress_;
  void* const group_;
  const Rank rank_;
  const Tag first_tag_;
  const std::vector<ProcessName> processes_;
  IndexedVector<Rank, std::atomic<bool>> is_lost_;
  std::atomic<bool> is_any_lost_{false};
  Claim claim_;
  std::unique_ptr<PeerProcesses> watcher_;
};

}  // namespace

std::unique_ptr<ByteTransport> make_mpi_byte_transport(MpiProgress& progress, void* group,
                                                       Rank rank, uint64_t world,
                                                       std::vector<ProcessName> processes) {
  return std::make_unique<MpiByteTransport>(progress, group, rank, world, std::move(processes));
}

}  // namespace stagecraft::detail
