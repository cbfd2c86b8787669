#pragma once

#include <memory>
#include <string>

#include <torch/csrc/utils/pybind.h>

#include "stagecraft/transport/transport.h"
#include "stagecraft/transport/world/world.h"

namespace stagecraft::python {

namespace py = pybind11;

/// This process's rank of a world.
class PyWorld {
 public:
  explicit PyWorld(std::unique_ptr<Transport> transport, std::string name)
      : own_(std::move(transport)), name_(std::move(name)) {}
  explicit PyWorld(World world) : world_(std::make_unique<World>(std::move(world))) {
    name_ = world_->transport_name();
  }

  /// ArgumentError after `close`.
  Transport& transport() const;
  const std::string& name() const { return name_; }
  bool is_open() const { return own_ != nullptr || world_ != nullptr; }
  void close();
  /// For a forked child process, which has none of the threads: drops the world without destroying
  /// it.
  void forget();

 private:
  std::unique_ptr<Transport> own_;
  std::unique_ptr<World> world_;
  std::string name_;
};

}  // namespace stagecraft::python
