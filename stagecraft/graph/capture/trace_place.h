#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft {

/// Where a trace is, for messages and for the scopes of nodes: the regions that the model has
/// entered, the operator that it calls, and the last module whose state it has read.
class TracePlace {
 public:
  /// Throws ArgumentError if `name` cannot be the name of a region.
  void enter_scope(const std::string& name);
  void leave_scope() { scopes_.pop_back(); }
  /// The regions, outermost first: "encoder.mask". Empty outside of all regions.
  std::string scope() const { return scopes_.empty() ? std::string() : scopes_.back(); }

  /// The subject of messages: the operator that the model calls, or the model's output.
  void set_subject(std::string subject) { subject_ = std::move(subject); }
  /// Called when the model reads a state. The state's name tells the module.
  void note_state(std::string_view name);

  /// Throws CaptureError with the place and the message.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::vector<std::string> scopes_;
  std::string subject_;
  std::optional<std::string> last_module_;  // empty for the model itself
};

}  // namespace stagecraft
