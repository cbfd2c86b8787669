#pragma once

#include <string>

namespace stagecraft {

/// Names a part of a forward, as a split point and for messages, where no module with parameters
/// does. Outside a capture it does nothing. Regions nest: "decoder.mask".
///
///   torch::Tensor forward(torch::Tensor x) {
///     auto region = stagecraft::scope("mask");
///     ...
class [[nodiscard]] ScopeGuard {
 public:
  explicit ScopeGuard(const std::string& name);
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  bool is_entered_;
};

inline ScopeGuard scope(const std::string& name) {
  return ScopeGuard(name);
}

/// Called inside a forward: a stage may end here. Outside a capture it does nothing.
void pipe_split();

}  // namespace stagecraft
