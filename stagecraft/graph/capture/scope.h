#pragma once

#include <string>

namespace stagecraft {

/// Names a part of a forward that is not a module with parameters. The name can be a split point,
/// and appears in messages. Regions nest: "decoder.mask". Outside a capture it does nothing.
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

/// Called inside a forward, it marks a split point. Outside a capture it does nothing.
void pipe_split();

}  // namespace stagecraft
