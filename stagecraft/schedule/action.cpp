#include "stagecraft/schedule/action.h"

#include <array>
#include <charconv>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

constexpr std::array<std::string_view, 16> kWords = {"F",           "I",
                                                     "W",           "B",
                                                     "SEND_F",      "RECV_F",
                                                     "SEND_B",      "RECV_B",
                                                     "WAIT_SEND_F", "WAIT_SEND_B",
                                                     "UNSHARD",     "RESHARD",
                                                     "REDUCE_GRAD", "WAIT_REDUCE_GRAD",
                                                     "OVERLAP_F_B", ""};
static_assert(kWords.size() == static_cast<std::size_t>(ActionType::kIdle) + 1);

// A schedule has millions of numbers, so none gets a string of its own.
void append_number(std::string& text, int32_t number) {
  std::array<char, 12> digits{};
  const auto [end, error] = std::to_chars(digits.begin(), digits.end(), number);
  text.append(digits.begin(), end);
}

}  // namespace

std::string_view to_string(ActionType type) {
  return kWords[static_cast<std::size_t>(type)];
}

std::optional<ActionType> find_action_type(std::string_view word) {
  if (word.empty()) return std::nullopt;
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (kWords[i] == word) return static_cast<ActionType>(i);
  }
  return std::nullopt;
}

void Action::refuse(StageId stage, ActionType type, int32_t microbatch) {
  const std::string_view word = type == ActionType::kIdle ? "idle" : to_string(type);
  require<ArgumentError>(is_stage(stage), "a stage is a number from 0 to {}, got {} for {}",
                         kMaxStage, stage.value(), word);
  if (!has_microbatch(type)) {
    throw ArgumentError(fmt::format("{} has no microbatch", word));
  }
  throw ArgumentError(fmt::format("{} of stage {} needs a microbatch from 0 to {}, got {}", word,
                                  stage.value(), kMaxMicrobatch,
                                  microbatch < 0 ? "none" : std::to_string(microbatch)));
}

std::string to_string(Action action) {
  std::string text;
  append_text(text, action);
  return text;
}

void append_text(std::string& text, Action action) {
  const bool has_stage = !action.is_idle() && !action.is_overlap();
  if (has_stage) append_number(text, action.stage().value());
  text += to_string(action.type());
  if (has_microbatch(action.type())) append_number(text, action.microbatch().value());
}

std::ostream& operator<<(std::ostream& out, Action action) {
  return out << to_string(action);
}

}  // namespace stagecraft
