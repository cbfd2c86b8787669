#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace stagecraft {

/// How stages share a parameter that several of them use.
enum class SharedParameter : uint8_t {
  kReplicate,  ///< each stage has its own copy; their gradients are added up after every step
  kTransmit,   ///< the first stage that uses it has it, sends its value and gets the gradients
};

/// How stages share the parameters that several of them use.
struct Sharing {
  SharedParameter by_default = SharedParameter::kReplicate;
  /// By any name of the parameter.
  std::map<std::string, SharedParameter> by_name = {};
};

}  // namespace stagecraft
