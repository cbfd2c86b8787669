#include "cli/train/saving.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/output.h"
#include "stagecraft/base/error.h"

namespace stagecraft::cli {

Saving::Saving(const TrainCommand& command)
    : folder_(command.checkpoint),
      every_(command.save_every),
      time_between_(command.save_time),
      writer_(command.checkpoint, command.keep) {}

bool Saving::is_due(int64_t step) const {
  if (!is_on()) return false;
  if (!time_between_) return step % every_ == 0;
  return std::chrono::steady_clock::now() - last_ >= *time_between_;
}

void Saving::start(Checkpoint checkpoint) {
  finish();
  last_ = std::chrono::steady_clock::now();
  step_ = checkpoint.step;
  writer_.start(std::move(checkpoint));
}

void Saving::finish() {
  if (!writer_.is_started()) return;
  try {
    writer_.finish();
    lost_.clear();
  } catch (const Error& error) {
    const std::string before = std::exchange(lost_, error.what());
    if (lost_ != before) say_failed(lost_);
  }
}

void Saving::say_failed(const std::string& cause) {
  print_error(fmt::format("the checkpoint of step {} was not written: {}; training continues, {}",
                          step_, cause,
                          newest().empty() ? "and the run has no checkpoint yet"
                                           : fmt::format("and {} stays", newest())));
}

std::string Saving::describe_loss() const {
  if (lost_.empty()) return {};
  return fmt::format(
      "the last checkpoint, of step {}, was not written; {}", step_,
      newest().empty() ? "the run has no checkpoint" : fmt::format("the newest is {}", newest()));
}

std::optional<Checkpoint> newest_readable(const std::string& folder, std::string& path) {
  const std::vector<std::string> all = list_checkpoints(folder);
  for (auto each = all.rbegin(); each != all.rend(); ++each) {
    try {
      std::optional<Checkpoint> checkpoint = load_checkpoint(*each);
      path = *each;
      return checkpoint;
    } catch (const FileError& error) {
      if (each + 1 == all.rend()) throw;
      print_error(fmt::format("{}; trying the checkpoint before it", error.what()));
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft::cli
