#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace stagecraft {

/// How stages share a parameter that several of them use.
enum class SharedParameter : uint8_t {
  kReplicate,  ///< each stage has a copy; the gradients of the copies are summed after every step
  kTransmit,  ///< the first stage that uses it holds it, sends its value and receives the gradients
};

/// How stages share the parameters that several of them use.
struct Sharing {
  SharedParameter by_default = SharedParameter::kReplicate;
  /// The keys are names of parameters. A parameter may have any of its names.
  std::map<std::string, SharedParameter> by_name = {};
};

}  // namespace stagecraft
