// Built if torch has CUDA and its headers are available (STAGECRAFT_CUDA). Streams and events are
// c10's generic ones and graphs are torch's, so nothing of the CUDA runtime is linked.

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/runtime/launch/graph_generators.h"

namespace stagecraft::detail {

namespace {

// Sequences of random numbers in one graph: stages or random operators x microbatches.
constexpr int64_t kMaxSequences = 1 << 16;

/// torch's graph, with the number that torch gives to its capture.
struct OpenGraph : at::cuda::CUDAGraph {
  auto capture_id() const { return capture_id_; }
};

// Newer versions of torch release the pool of a capture that failed when the graph is destroyed.
template <typename Graph>
constexpr bool kReleasesFailedPool = requires(Graph& graph) {
  graph.capture_end_pre();
};

template <typename Allocator, typename Pool>
void end_host_pool(Allocator* allocator, const Pool& pool) {
  if constexpr (requires { allocator->end_allocate_to_pool(pool); }) {
    allocator->end_allocate_to_pool(pool);
  }
}

c10::Stream current_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// The second stream waits for what was launched on the first.
void order(const c10::Stream& first, const c10::Stream& second) {
  if (first == second) return;
  c10::Event event(first.device_type());
  event.record(first);
  event.block(second);
}

class CudaStreamScope final : public StreamScope {
 public:
  explicit CudaStreamScope(const c10::Stream& stream)
      : outside_(current_of(stream.device())), inside_(stream) {
    order(outside_, inside_);
    guard_.emplace(inside_);
  }
  ~CudaStreamScope() override {
    guard_.reset();
    try {
      order(inside_, outside_);
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("streams could not be ordered: ") + error.what());
    }
  }

 private:
  c10::Stream outside_;
  c10::Stream inside_;
  std::optional<c10::StreamGuard> guard_;
};

/// The seeds of a graph's sequences, in device memory.
struct Sequences {
  at::Tensor seeds;             // int64, [kMaxSequences]
  at::Tensor offset;            // int64, one zero
  std::vector<uint64_t> drawn;  // by sequence: what was added to the offset
};

/// Events that are recorded by nodes of a graph. A plain record in a capture only orders streams.
class CudaGraphMarks final : public DeviceMarks {
 public:
  using Record = cudaError_t (*)(cudaEvent_t, cudaStream_t, unsigned int);

  /// The function of CUDA's runtime that torch has loaded; null if there is none. The runtime is
  /// not linked.
  static Record find_record() {
    static const auto record =
        reinterpret_cast<Record>(dlsym(RTLD_DEFAULT, "cudaEventRecordWithFlags"));
    return record;
  }

  CudaGraphMarks(c10::Device device, std::size_t limit) : device_(device) {
    const c10::Stream stream = current_of(device);
    for (std::size_t i = 0; i < limit; ++i) {
      events_.emplace_back(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      events_.back().record(stream);  // creates the event
    }
  }

  void clear() override { size_ = 0; }
  std::size_t size() const override { return size_; }
  bool is_reached(std::size_t mark) override { return events_[mark].query(); }

  std::size_t set() override {
    require<Error>(size_ < events_.size(), "a captured step has more than {} marks", size_);
    const cudaStream_t stream = c10::cuda::CUDAStream(current_of(device_)).stream();
    const cudaError_t result = find_record()(static_cast<cudaEvent_t>(events_[size_].eventId()),
                                             stream, cudaEventRecordExternal);
    require<Error>(result == cudaSuccess, "an event of a graph cannot be recorded: CUDA error {}",
                   static_cast<int>(result));
    return size_++;
  }

  std::vector<int64_t> read() override { return read_events(std::span(events_).first(size_)); }

 private:
  c10::Device device_;
  std::vector<c10::Event> events_;
  std::size_t size_ = 0;
};

/// While it lives, notes torch's warning about a graph without work instead of printing it: an I of
/// the first stage has none.
class NoteEmptyGraph final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Graph is empty") != std::string::npos) {
      is_empty_ = true;
    } else {
      c10::WarningHandler::process(warning);
    }
  }
  bool is_empty() const { return is_empty_; }

 private:
  bool is_empty_ = false;
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

class CudaGraphDevice;

class CudaDeviceGraph final : public DeviceGraph {
 public:
  CudaDeviceGraph(CudaGraphDevice& device, std::unique_ptr<OpenGraph> graph, Sequences sequences,
                  bool is_empty)
      : device_(device),
        graph_(std::move(graph)),
        sequences_(std::move(sequences)),
        is_empty_(is_empty) {}
  ~CudaDeviceGraph() override;
  void replay(std::span<const uint64_t> seeds) override;

 private:
  CudaGraphDevice& device_;
  std::unique_ptr<OpenGraph> graph_;
  Sequences sequences_;
  bool is_empty_;
};

class CudaGraphDevice final : public GraphDevice {
 public:
  explicit CudaGraphDevice(c10::Device device)
      : device_(device),
        stream_(c10::impl::VirtualGuardImpl(device.type())
                    .getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
        pool_(at::cuda::graph_pool_handle()),
        state_(c10::make_intrusive<at::CUDAGeneratorState>()),
        generator_(at::make_generator<at::CUDAGeneratorImpl>(device.index(), state_)) {}

  c10::Device device() const override { return device_; }

  std::unique_ptr<StreamScope> enter() override {
    return std::make_unique<CudaStreamScope>(stream_);
  }

  void release_unused() override { c10::cuda::CUDACachingAllocator::emptyCache(); }

  void begin_capture() override {
    prepare_sequences();
    sequences_ = {};
    current_.reset();
    // torch refuses to capture into a pool whose last graph was released.
    if (num_graphs_ == 0) pool_ = at::cuda::graph_pool_handle();
    graph_ = std::make_unique<OpenGraph>();
    ++num_graphs_;
    // Thread-local mode: threads of other pipelines may allocate and synchronise during the
    // capture.
    graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  }

  std::unique_ptr<DeviceGraph> end_capture() override {
    const auto capture = graph_->capture_id();
    const NoteEmptyGraph note;
    graph_->capture_end();
    end_positions(*state_, capture);
    return std::make_unique<CudaDeviceGraph>(*this, std::move(graph_),
                                             std::exchange(sequences_, {}), note.is_empty());
  }

  void cancel_capture() noexcept override {
    const std::unique_ptr<OpenGraph> graph = std::move(graph_);
    if (!graph) return;
    --num_graphs_;
    end_positions(*state_, graph->capture_id());
    sequences_ = {};
    try {
      graph->capture_end();
      return;  // the failure was on the host, and the unused graph is destroyed
    } catch (const std::exception& error) {
      log(LogLevel::kDebug, std::string("the capture ended with: ") + error.what());
    }
    if constexpr (!kReleasesFailedPool<at::cuda::CUDAGraph>) {
      namespace allocator = c10::cuda::CUDACachingAllocator;
      try {
        allocator::endAllocateToPool(device_.index(), pool_);
        end_host_pool(at::getHostAllocator(at::kCUDA), pool_);
        allocator::releasePool(device_.index(), pool_);
      } catch (const std::exception& error) {
        log(LogLevel::kWarning,
            std::string("memory of a failed capture could not be released: ") + error.what());
      }
    }
  }

  void open_sequence() override {
    require<Error>(static_cast<int64_t>(sequences_.drawn.size()) < kMaxSequences,
                   "a captured step draws from more than {} sequences of random numbers",
                   kMaxSequences);
    if (!sequences_.seeds.defined()) sequences_ = std::exchange(spare_, {});
    sequences_.drawn.push_back(0);
  }

  at::Generator continue_sequence(std::size_t sequence) override {
    const auto capture = graph_->capture_id();
    if (current_) sequences_.drawn[*current_] = get_draws(*state_, capture);
    current_ = sequence;
    set_position(*state_, capture,
                 {.seed = sequences_.seeds.narrow(0, static_cast<int64_t>(sequence), 1),
                  .offset = sequences_.offset,
                  .draws = sequences_.drawn[sequence]});
    return generator_;
  }

  at::Tensor sequence_seeds(std::size_t first, std::size_t count) override {
    return sequences_.seeds.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count));
  }

  std::unique_ptr<DeviceMarks> make_marks(std::size_t limit) override {
    if (CudaGraphMarks::find_record() == nullptr) return nullptr;
    return std::make_unique<CudaGraphMarks>(device_, limit);
  }

  void note_released() { --num_graphs_; }

  /// Graphs share their memory, so they run in the order of the replays, even on different streams.
  void replay_here(OpenGraph& graph) {
    const c10::Stream now = current_of(device_);
    if (last_) order(*last_, now);
    last_ = now;
    graph.replay();
  }

 private:
  // Outside of a capture: memory that is allocated in a capture belongs to the graph's pool.
  void prepare_sequences() {
    if (spare_.seeds.defined()) return;
    const auto options = at::TensorOptions(device_).dtype(at::kLong);
    spare_.seeds = at::empty({kMaxSequences}, options);
    spare_.offset = at::zeros({1}, options);
  }

  c10::Device device_;
  c10::Stream stream_;
  decltype(at::cuda::graph_pool_handle()) pool_;
  c10::intrusive_ptr<at::CUDAGeneratorState> state_;
  at::Generator generator_;
  int64_t num_graphs_ = 0;              // that exist, with the one that is being captured
  std::unique_ptr<OpenGraph> graph_;    // that is being captured
  Sequences sequences_;                 // of that graph
  Sequences spare_;                     // for the next graph that draws
  std::optional<std::size_t> current_;  // the sequence of the last draw
  std::optional<c10::Stream> last_;     // of the last replay
};

CudaDeviceGraph::~CudaDeviceGraph() {
  device_.note_released();
}

void CudaDeviceGraph::replay(std::span<const uint64_t> seeds) {
  if (is_empty_) return;
  if (!seeds.empty()) {
    // Each replay has its own pinned memory, because the copy may run much later.
    const at::Tensor host =
        at::empty({static_cast<int64_t>(seeds.size())},
                  at::TensorOptions(at::kCPU).dtype(at::kLong).pinned_memory(true));
    std::copy(seeds.begin(), seeds.end(), static_cast<uint64_t*>(host.mutable_data_ptr()));
    sequences_.seeds.narrow(0, 0, host.numel()).copy_(host, /*non_blocking=*/true);
  }
  device_.replay_here(*graph_);
}

}  // namespace

std::unique_ptr<GraphDevice> make_cuda_graph_device(c10::Device device) {
  if (!at::globalContext().hasCUDA()) return nullptr;
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  return std::make_unique<CudaGraphDevice>(device);
}

}  // namespace stagecraft::detail
