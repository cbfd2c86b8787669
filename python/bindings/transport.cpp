#include "python/bindings/transport.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "python/bindings/python_call.h"
#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/transport/gloo/join_gloo.h"
#include "stagecraft/transport/local/local_world.h"

namespace stagecraft::python {
namespace {

using Seconds = std::chrono::duration<double>;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
}

std::shared_ptr<PyWorld> join_store(c10d::Store* store, int32_t rank, int32_t num_ranks,
                                    const std::string& job, const std::string& address,
                                    double timeout, double max_silence) {
  JoinOptions options;
  options.rank = Rank(rank);
  options.num_ranks = num_ranks;
  options.job = job;
  options.address = address;
  options.join_timeout = nanoseconds(timeout);
  options.transport.max_silence = nanoseconds(max_silence);
  const auto held = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store);
  const py::gil_scoped_release release;
  return std::make_shared<PyWorld>(join_gloo(held, options), "gloo");
}

std::shared_ptr<PyWorld> local_world() {
  LocalWorld world(1);
  return std::make_shared<PyWorld>(world.release(Rank(0)), "local");
}

std::shared_ptr<PyWorld> world_from_environment(const std::string& transport,
                                                std::optional<int32_t> ranks, double timeout) {
  WorldOptions options;
  options.transport = transport;
  options.ranks = ranks;
  options.join_timeout = nanoseconds(timeout);
  const py::gil_scoped_release release;
  World world = World::from_environment(options);
  if (!world.is_local()) return std::make_shared<PyWorld>(std::move(world));
  require<ArgumentError>(world.num_ranks() == 1,
                         "no launcher has started this process as one of {} ranks; ranks of one "
                         "process are a stagecraft.Pipeline",
                         world.num_ranks());
  LocalWorld local(1);
  return std::make_shared<PyWorld>(local.release(Rank(0)), "local");
}

// Lines of the C++ log, until Python asks for them. Threads of the transport log without the GIL.
class LogQueue {
 public:
  static LogQueue& get() {
    static auto* const queue = new LogQueue;
    return *queue;
  }
  void add(LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kMost) lines_.emplace_back(static_cast<int>(level), message);
  }
  std::vector<std::pair<int, std::string>> take() {
    const std::lock_guard lock(mutex_);
    return {std::make_move_iterator(lines_.begin()), std::make_move_iterator(lines_.end())};
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    lines_.clear();
  }

 private:
  static constexpr std::size_t kMost = 10000;
  std::mutex mutex_;
  std::deque<std::pair<int, std::string>> lines_;
};

std::vector<std::pair<int, std::string>> take_log() {
  auto lines = LogQueue::get().take();
  if (!lines.empty()) LogQueue::get().clear();
  return lines;
}

template <typename Call>
auto waiting(const Call& call) {
  std::optional<WaitTick> tick;
  if (is_main_thread()) tick.emplace(check_signals);
  const py::gil_scoped_release release;
  return call();
}

}  // namespace

Transport& PyWorld::transport() const {
  require<ArgumentError>(is_open(), "this world is closed");
  return own_ ? *own_ : world_->transport();
}

void PyWorld::close() {
  own_.reset();
  world_.reset();
}

void PyWorld::forget() {
  static_cast<void>(own_.release());
  static_cast<void>(world_.release());
}

void bind_transport(py::module_& module) {
  set_log_sink(
      [](LogLevel level, std::string_view message) { LogQueue::get().add(level, message); });
  module.def("take_log", &take_log, "Lines that were logged since the last call: (level, text).");
  py::class_<PyWorld, std::shared_ptr<PyWorld>>(
      module, "World", py::release_gil_before_calling_cpp_dtor(), "This process's rank of a world.")
      .def_static("local", &local_world)
      .def_static("join_store", &join_store, py::arg("store"), py::arg("rank"),
                  py::arg("num_ranks"), py::arg("job"), py::arg("address"), py::arg("timeout"),
                  py::arg("max_silence"))
      .def_static("from_environment", &world_from_environment, py::arg("transport"),
                  py::arg("ranks"), py::arg("timeout"))
      .def_property_readonly("rank", [](const PyWorld& w) { return w.transport().rank().value(); })
      .def_property_readonly("num_ranks",
                             [](const PyWorld& w) { return w.transport().num_ranks(); })
      .def_property_readonly("name", &PyWorld::name)
      .def_property_readonly("is_open", &PyWorld::is_open)
      .def("barrier",
           [](PyWorld& w, double timeout) {
             waiting([&] { w.transport().barrier(Deadline::after(nanoseconds(timeout))); });
           })
      .def("abort",
           [](PyWorld& w, const std::string& message) {
             const py::gil_scoped_release release;
             w.transport().abort({w.transport().rank(), message});
           })
      .def("close", &PyWorld::close, py::call_guard<py::gil_scoped_release>())
      .def("forget", &PyWorld::forget);
}

}  // namespace stagecraft::python
