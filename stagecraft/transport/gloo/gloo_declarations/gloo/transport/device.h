#pragma once

namespace gloo::transport {

class Device {
 public:
  virtual ~Device();
};

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
