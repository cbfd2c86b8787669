// The part of NCCL's C API that Stagecraft uses, for tests: moves bytes between two processes over
// a socket, so that the processes may share a GPU, which NCCL refuses, or have none.
//
// With a stream it behaves as NCCL does: a call puts work on the stream and returns, and the stream
// stands still until the other side has come. Without one (memory of the host) a call waits itself.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <poll.h>
#include <random>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace {

constexpr int kSuccess = 0;
constexpr int kUnhandledCuda = 1;
constexpr int kSystemError = 2;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
constexpr int kPollMs = 2;

// What a test wants of it beside the usual: "refuse" and "hang" when a communicator is made, "wait"
// there for all bytes that this process sends and receives (as CUDA may, before it gives memory),
// "fail" when something is received, "slow" on a stream.
bool behaves(const char* how) {
  const char* const behaviour = getenv("SC_FAKE_NCCL");
  return behaviour != nullptr && std::string(behaviour) == how;
}
constexpr auto kSlow = std::chrono::milliseconds(300);

struct UniqueId {
  std::array<char, 128> bytes;
};

// CUDA, as far as it is needed, from the libraries that the program has loaded.
struct Cuda {
  int (*memcpy_async)(void*, const void*, std::size_t, int, void*) = nullptr;
  int (*host_alloc)(void**, std::size_t, unsigned) = nullptr;
  int (*event_create)(void**, unsigned) = nullptr;
  int (*event_record)(void*, void*) = nullptr;
  int (*event_query)(void*) = nullptr;
  int (*wait_value)(void*, uint64_t, uint32_t, unsigned) = nullptr;
  int (*write_value)(void*, uint64_t, uint32_t, unsigned) = nullptr;
  bool is_there = false;

  static const Cuda& get() {
    static const Cuda cuda = load();
    return cuda;
  }

 private:
  static Cuda load() {
    Cuda cuda;
    void* runtime = nullptr;
    for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
      if (runtime == nullptr) runtime = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    }
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (runtime == nullptr || driver == nullptr) return cuda;
    const auto find = [](void* library, const char* name, auto& function) {
      void* const found = dlsym(library, name);
      std::memcpy(&function, &found, sizeof(found));
      return found != nullptr;
    };
    int (*get_device_count)(int*) = nullptr;
    int devices = 0;
    cuda.is_there = find(runtime, "cudaGetDeviceCount", get_device_count) &&
                    get_device_count(&devices) == 0 && devices > 0 &&
                    find(runtime, "cudaMemcpyAsync", cuda.memcpy_async) &&
                    find(runtime, "cudaHostAlloc", cuda.host_alloc) &&
                    find(runtime, "cudaEventCreateWithFlags", cuda.event_create) &&
                    find(runtime, "cudaEventRecord", cuda.event_record) &&
                    find(runtime, "cudaEventQuery", cuda.event_query) &&
                    find(driver, "cuStreamWaitValue32_v2", cuda.wait_value) &&
                    find(driver, "cuStreamWriteValue32_v2", cuda.write_value);
    return cuda;
  }
};

constexpr int kToHost = 2;
constexpr int kToDevice = 1;
constexpr unsigned kNoTiming = 2;

// Pinned memory with a flag for which a stream waits in front of it. Never freed: that would wait
// for the device, and the device for the flag.
struct Buffer {
  static constexpr std::size_t kFlagBytes = 64;
  char* memory = nullptr;
  std::size_t size = 0;
  void* event = nullptr;  // when the stream is through with it

  char* data() const { return memory + kFlagBytes; }
  void lower() const {
    __atomic_store_n(copied(), 0U, __ATOMIC_RELEASE);
    __atomic_store_n(flag(), 0U, __ATOMIC_RELEASE);
  }
  void raise() const { __atomic_store_n(flag(), 1U, __ATOMIC_RELEASE); }
  uint32_t* flag() const { return reinterpret_cast<uint32_t*>(memory); }
  // The stream of a send sets it when the bytes are here. The sender does not ask CUDA, which may
  // not answer before the stream has made progress.
  uint32_t* copied() const { return flag() + 8; }
  bool is_copied() const { return __atomic_load_n(copied(), __ATOMIC_ACQUIRE) != 0; }
};

struct Comm {
  int fd = -1;
  bool is_sender = false;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> error{kSuccess};

  struct Job {
    Buffer* buffer;
    std::size_t size;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool is_closing = false;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::thread worker;

  ~Comm() {
    if (fd >= 0) close(fd);
  }

  // All of it, or false: aborted, or the other side is gone.
  bool transfer(char* at, std::size_t size, bool sends) {
    while (size > 0) {
      if (is_aborted) return false;
      pollfd ready{fd, static_cast<short>(sends ? POLLOUT : POLLIN), 0};
      if (poll(&ready, 1, kPollMs) == 0) continue;
      const ssize_t done = sends ? ::send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                                 : ::recv(fd, at, size, MSG_DONTWAIT);
      if (done < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (done <= 0) {
        if (!is_aborted) error = kRemoteError;
        return false;
      }
      at += done;
      size -= static_cast<std::size_t>(done);
    }
    return true;
  }

  // Waits for the receiver, as a sender's stream does: bytes alone may stay in the socket.
  bool meet() {
    char seen = 0;
    return transfer(&seen, 1, !is_sender);
  }

  Buffer* find_buffer(std::size_t size) {
    const std::lock_guard lock(mutex);
    for (const auto& buffer : buffers) {
      const bool is_busy = std::any_of(jobs.begin(), jobs.end(),
                                       [&](const Job& job) { return job.buffer == buffer.get(); });
      if (!is_busy && buffer->size >= size && Cuda::get().event_query(buffer->event) == 0) {
        return buffer.get();
      }
    }
    return nullptr;
  }

  // CUDA may wait for all streams before it gives memory, and a stream that stands still for a rank
  // which waits for this one: so there is some before the first message.
  bool reserve() {
    constexpr int kReserved = 24;
    constexpr std::size_t kReservedBytes = std::size_t{1} << 18U;
    for (int i = 0; i < kReserved; ++i) {
      buffers.push_back(make_buffer(kReservedBytes));
      if (!buffers.back()) return false;
    }
    return true;
  }

  // Without the mutex: the worker must be able to go on.
  std::unique_ptr<Buffer> make_buffer(std::size_t size) {
    const Cuda& cuda = Cuda::get();
    auto made = std::make_unique<Buffer>();
    made->size = std::max<std::size_t>(size, std::size_t{1} << 16U);
    void* memory = nullptr;
    if (cuda.host_alloc(&memory, made->size + Buffer::kFlagBytes, 0) != 0) return nullptr;
    if (cuda.event_create(&made->event, kNoTiming) != 0) return nullptr;
    made->memory = static_cast<char*>(memory);
    return made;
  }

  Buffer* take_buffer(std::size_t size) {
    if (Buffer* const found = find_buffer(size)) return found;
    auto made = make_buffer(size);
    if (!made) return nullptr;
    const std::lock_guard lock(mutex);
    buffers.push_back(std::move(made));
    return buffers.back().get();
  }

  int post(void* at, std::size_t size, void* stream) {
    const Cuda& cuda = Cuda::get();
    if (!cuda.is_there) return kUnhandledCuda;
    Buffer* const buffer = take_buffer(size);
    if (buffer == nullptr) return kUnhandledCuda;
    buffer->lower();
    const auto flag = reinterpret_cast<uint64_t>(buffer->flag());
    int bad = 0;
    if (is_sender) {
      bad |= cuda.memcpy_async(buffer->data(), at, size, kToHost, stream);
      bad |= cuda.write_value(stream, reinterpret_cast<uint64_t>(buffer->copied()), 1, 0);
      bad |= cuda.wait_value(stream, flag, 1, 0);
    } else {
      bad |= cuda.wait_value(stream, flag, 1, 0);
      bad |= cuda.memcpy_async(at, buffer->data(), size, kToDevice, stream);
    }
    bad |= cuda.event_record(buffer->event, stream);
    if (bad != 0) return kUnhandledCuda;
    const std::lock_guard lock(mutex);
    jobs.push_back({buffer, size});
    if (is_aborted) buffer->raise();
    changed.notify_all();
    return kSuccess;
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return is_aborted || is_closing || !jobs.empty(); });
      if (is_aborted || jobs.empty()) return;
      const Job job = jobs.front();
      lock.unlock();
      bool is_there = true;
      if (job.size > 1 && behaves("slow")) std::this_thread::sleep_for(kSlow);
      while (is_sender && is_there && !job.buffer->is_copied()) {
        is_there = !is_aborted;
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      }
      is_there = is_there && transfer(job.buffer->data(), job.size, is_sender);
      lock.lock();
      // As with NCCL, what was lost stays on the stream until the communicator is aborted.
      if (!is_there) return;
      job.buffer->raise();
      jobs.pop_front();
      changed.notify_all();
    }
  }

  void abort() {
    const std::lock_guard lock(mutex);
    is_aborted = true;
    for (const Job& job : jobs) job.buffer->raise();
    changed.notify_all();
  }
};

sockaddr_un address_of(const UniqueId& id, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Begins with a zero: a name that no file system has.
  const std::size_t length = 1 + strnlen(id.bytes.data(), 64);
  std::memcpy(address.sun_path + 1, id.bytes.data(), length - 1);
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  return address;
}

int accept_one(const UniqueId& id) {
  socklen_t size = 0;
  const auto address = address_of(id, size);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int fd = -1;
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      listen(listener, 1) == 0) {
    fd = accept(listener, nullptr, nullptr);
  }
  close(listener);
  return fd;
}

int connect_one(const UniqueId& id) {
  socklen_t size = 0;
  const auto address = address_of(id, size);
  for (;;) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
    close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::atomic<int> communicators{0};  // that this process has made
std::atomic<int> under_way{0};      // calls that wait for the other side

// Communicators are never freed, so that a call that is under way when one is aborted ends well.
int move(void* at, std::size_t size, Comm* comm, void* stream) {
  if (comm->is_aborted) return kInvalidUsage;
  if (stream != nullptr) return comm->post(at, size, stream);
  ++under_way;
  const bool is_done = comm->transfer(static_cast<char*>(at), size, comm->is_sender) &&
                       (!behaves("wait") || comm->meet());
  // As a stream would.
  while (!is_done && !comm->is_aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --under_way;
  return kSuccess;
}

}  // namespace

#define SC_EXPORT extern "C" __attribute__((visibility("default")))

SC_EXPORT int sc_fake_nccl_communicators() {
  return communicators;
}

SC_EXPORT int ncclGetVersion(int* version) {
  *version = 20099;
  return kSuccess;
}

SC_EXPORT const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited or there was a network error"
                                : "a failure of the fake";
}

SC_EXPORT int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> count{0};
  std::random_device random;
  *id = {};
  std::snprintf(id->bytes.data(), id->bytes.size(), "stagecraft-fake-%d-%d-%u",
                static_cast<int>(getpid()), count.fetch_add(1), random());
  return kSuccess;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): as NCCL declares it
SC_EXPORT int ncclCommInitRank(void** comm, int ranks, UniqueId id, int rank) {
  if (ranks != 2 || rank < 0 || rank > 1) return kInvalidUsage;
  if (behaves("refuse")) return kInvalidUsage;
  while (behaves("hang")) pause();
  auto made = std::make_unique<Comm>();
  made->is_sender = rank == 0;
  made->fd = rank == 0 ? accept_one(id) : connect_one(id);
  if (made->fd < 0) return kSystemError;
  while (behaves("wait") && under_way > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (Cuda::get().is_there && !made->reserve()) return kUnhandledCuda;
  Comm* const raw = made.release();
  raw->worker = std::thread([raw] { raw->run(); });
  *comm = raw;
  ++communicators;
  return kSuccess;
}

SC_EXPORT int ncclCommAbort(void* comm) {
  static_cast<Comm*>(comm)->abort();
  static_cast<Comm*>(comm)->worker.join();
  shutdown(static_cast<Comm*>(comm)->fd, SHUT_RDWR);
  return kSuccess;
}

SC_EXPORT int ncclCommDestroy(void* comm) {
  auto* const made = static_cast<Comm*>(comm);
  {
    std::unique_lock lock(made->mutex);
    made->is_closing = true;
    made->changed.notify_all();
  }
  made->worker.join();
  close(std::exchange(made->fd, -1));
  return kSuccess;
}

SC_EXPORT int ncclCommGetAsyncError(void* comm, int* error) {
  *error = static_cast<Comm*>(comm)->error;
  return kSuccess;
}

SC_EXPORT int ncclSend(const void* at, std::size_t size, int type, int peer, void* comm,
                       void* stream) {
  if (type != 1 || peer != 1) return kInvalidUsage;
  return move(const_cast<void*>(at), size, static_cast<Comm*>(comm), stream);
}

SC_EXPORT int ncclRecv(void* at, std::size_t size, int type, int peer, void* comm, void* stream) {
  if (type != 1 || peer != 0) return kInvalidUsage;
  if (size > 1 && behaves("fail")) return kSystemError;  // not the byte of a new communicator
  return move(at, size, static_cast<Comm*>(comm), stream);
}
