#include "cli/train/session.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/failure.h"
#include "cli/lowering_options.h"
#include "cli/output.h"
#include "cli/train/batches.h"
#include "cli/train/interrupt.h"
#include "cli/train/model.h"
#include "cli/train/options.h"
#include "cli/train/planning.h"
#include "cli/train/processes.h"
#include "cli/train/progress.h"
#include "cli/train/ranks.h"
#include "cli/train/reports.h"
#include "cli/train/sample.h"
#include "cli/train/saving.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/state_dict.h"

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kEvaluationRows = 1;
constexpr uint64_t kSampleDraws = 2;

/// The value of --resume for the newest checkpoint of --checkpoint, if there is one.
constexpr const char* kNewest = "auto";

/// Seeds of random numbers outside of the model: rows of the text, the sample.
uint64_t seed_of(const TrainCommand& command, uint64_t purpose) {
  return mix_seed(static_cast<uint64_t>(command.seed), purpose, 0, kWholeModel);
}

/// Checks before training that checkpoints can be written.
void check_folder_is_writable(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw BadUsage(fmt::format("--checkpoint {}: cannot be created: {}", folder, error.message()));
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    throw BadUsage(
        fmt::format("--checkpoint {}: cannot be written: {}", folder, std::strerror(errno)));
  }
}

class Session {
 public:
  /// `transport` is that of this rank, or null without a world. Only rank 0 prints and writes
  /// files.
  Session(TrainCommand command, const std::optional<Checkpoint>& checkpoint, Transport* transport)
      : command_(std::move(command)),
        transport_(transport),
        data_(command_),
        task_(make_task(command_, data_)),
        rows_(data_.training(command_, seed_of(command_, 0))),
        trainer_(make_trainer(command_, task_, transport)),
        saving_(command_),
        reports_(command_, is_first()) {
    // Every rank has created the whole model, but trains only its own stages.
    if (command_.shard == "parameters") trainer_.release_other_stages();
    // Throws early if there is not enough data for evaluation.
    if (is_evaluated()) data_.evaluation(command_, 0);
    if (checkpoint) restore(*checkpoint);
    if (!is_first()) {
      command_.is_quiet = true;
      return;
    }
    reports_.check_places();
    check_writable(command_.save_weights);
    check_folder_is_writable(command_.checkpoint);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// `ranks`: "4 ranks".
  int run(const std::string& ranks) {
    Progress progress(command_, trainer_.steps());
    introduce(progress, ranks);
    const bool is_done = trainer_.steps() >= command_.steps;
    const int64_t first = trainer_.steps();
    while (trainer_.steps() < command_.steps) {
      const NamedTensors rows = rows_->draw(command_.batch);
      const TrainStep step = train_on(rows);
      progress.step(step);
      const int64_t now = step.step;
      reports_.add_step(step, command_.batch * command_.model.context);
      compare_with_plan_once(progress);
      fit_lookahead_once(progress, first);
      if (is_evaluated() && (now % command_.eval_every == 0 || now == command_.steps)) {
        const double loss = evaluate();
        reports_.add_evaluation(now, loss);
        progress.evaluation(now, loss);
      }
      if (is_first()) tell_step(now);
      const StepNotes notes =
          agree_on_notes({.signal = noted_interrupt(), .is_save_due = saving_.is_due(now)},
                         transport_, command_.timeout);
      const bool is_over = notes.signal != 0 || now == command_.steps;
      if (saving_.is_on() && (notes.is_save_due || is_over)) save(is_over);
      if (notes.signal != 0) {
        progress.stopped(now, saving_.newest(), command_.checkpoint);
        reports_.write(trainer_);
        return 128 + notes.signal;
      }
    }
    if (is_done) {
      progress.say(fmt::format(
          "nothing to train: --steps {} are done, and there is no step to report", command_.steps));
    } else {
      reports_.write(trainer_);
    }
    if (!command_.save_weights.empty()) save_weights();
    if (command_.sample > 0 && task_.can_sample) sample(progress);
    progress.end();
    const std::string loss = saving_.describe_loss();
    if (loss.empty()) return kGood;
    print_error(loss);
    return kNotSaved;
  }

 private:
  bool is_first() const { return transport_ == nullptr || transport_->rank() == Rank(0); }

  /// Waits until rank 0 has written its files, which may take longer than the timeout of a step.
  void wait_for_files() {
    if (transport_ != nullptr) transport_->barrier(Deadline::after(std::chrono::hours(1)));
  }

  c10::Device device() const { return trainer_.states().front().tensor().device(); }

  bool is_evaluated() const { return command_.eval_every > 0 && data_.has_evaluation(); }

  NamedTensors on_device(NamedTensors rows) const {
    for (auto& [name, tensor] : rows) tensor = tensor.to(device());
    return rows;
  }

  // Measuring memory costs a few per cent of time, so it is done in one step: the reported one. On
  // a device with graphs it is the step before, because a step that measures memory is not
  // replayed.
  bool measures_memory() const {
    if (!reports_.are_wanted()) return false;
    constexpr int64_t kReplaysAfter = 8;
    const bool is_replayed = device().is_cuda() && command_.graphs != "off" &&
                             transport_ == nullptr && command_.steps >= kReplaysAfter;
    return trainer_.steps() + 1 == command_.steps - (is_replayed ? 1 : 0);
  }

  TrainStep train_on(const NamedTensors& drawn) {
    try {
      const NamedTensors rows = on_device(drawn);
      return trainer_.step(task_.arguments(rows), task_.target(rows), measures_memory());
    } catch (const Error& error) {
      if (transport_ != nullptr) throw;  // other ranks may be gone
      try {
        reports_.write(trainer_, error.what());
      } catch (const Error&) {
        // The error of the step is more important.
      }
      throw;
    }
  }

  void introduce(Progress& progress, const std::string& ranks) {
    int64_t parameters = 0;
    for (const ModelState& state : trainer_.states()) {
      if (state.is_trained()) parameters += state.tensor().numel();
    }
    progress.say(fmt::format("{} parameters in {} stages on {}, {}, {} microbatches; {}",
                             parameters, trainer_.pipe().num_stages(), ranks, command_.schedule,
                             command_.microbatches, data_.describe()));
    if (trainer_.steps() > 0)
      progress.say(fmt::format("continuing after step {}", trainer_.steps()));
  }

  /// Prints the comparison with the plan once, when some steps after the first ones have been
  /// measured.
  void compare_with_plan_once(Progress& progress) {
    constexpr std::size_t kSkipped = 2;
    constexpr std::size_t kMeasured = 7;
    if (!command_.planned || makespans_.size() >= kSkipped + kMeasured) return;
    makespans_.push_back(make_report(trainer_.recorded_run().recording).makespan * 1e-3);
    const bool is_last = trainer_.steps() == command_.steps;
    if (makespans_.size() < kSkipped + kMeasured && !is_last) return;
    const std::size_t skipped = std::min(kSkipped, makespans_.size() - 1);
    std::vector<double> measured(makespans_.begin() + static_cast<std::ptrdiff_t>(skipped),
                                 makespans_.end());
    std::sort(measured.begin(), measured.end());
    const std::string line = compare_with_plan(*command_.planned, measured[measured.size() / 2]);
    progress.say(line);
    reports_.add_fact("plan", line);
  }

  /// For --unshard-lookahead least: after a few steps, if more follow. The first two take longer
  /// than later ones. `first` is the number of steps of earlier calls.
  void fit_lookahead_once(Progress& progress, int64_t first) {
    constexpr int64_t kMeasured = 3;
    if (command_.lookahead != kLeastLookahead) return;
    if (trainer_.steps() != std::min(first + kMeasured, command_.steps - int64_t{1})) return;
    const std::string line = to_text(trainer_.fit_unshard_lookahead());
    progress.say(line);
    reports_.add_fact("unshard lookahead", line);
  }

  /// The loss of an evaluation, on the same rows each time.
  double evaluate() {
    const auto batches = data_.evaluation(command_, seed_of(command_, kEvaluationRows));
    double sum = 0;
    for (int32_t i = 0; i < command_.eval_batches; ++i) {
      const NamedTensors rows = on_device(batches->draw(command_.batch / command_.accumulate));
      sum += trainer_.eval_loss(task_.arguments(rows), task_.target(rows));
    }
    return sum / command_.eval_batches;
  }

  void sample(Progress& progress) {
    const auto rows = static_cast<int32_t>(command_.microbatches * task_.least_rows);
    const std::string text = sample_text(trainer_, task_, command_.prompt,
                                         {.context = command_.model.context,
                                          .length = command_.sample,
                                          .rows = rows,
                                          .temperature = command_.temperature,
                                          .seed = seed_of(command_, kSampleDraws),
                                          .device = device()});
    progress.sample(command_.prompt, text);
  }

  /// Training continues while the checkpoint is written, unless it is the last one.
  void save(bool is_last) {
    const Json notes = {{"options", command_.given},
                        {"rows_drawn", rows_->position()},
                        {"text_checksum", data_.checksum()}};
    saving_.start(trainer_.checkpoint(json_to_text(notes, {.repair = true})));
    if (!is_last) return;
    saving_.finish();
    wait_for_files();
  }

  void save_weights() {
    trainer_.gather_weights();
    if (is_first()) save_state_dict(task_.pipe, command_.save_weights);
    wait_for_files();
  }

  void restore(const Checkpoint& checkpoint) {
    const Json notes = json_from_text(checkpoint.notes);
    if (notes.value("text_checksum", uint64_t{0}) != data_.checksum()) {
      throw BadUsage(
          fmt::format("--resume {}: the checkpoint was trained on data different from --data",
                      command_.resume));
    }
    trainer_.restore(checkpoint);
    rows_->set_position(notes.value("rows_drawn", int64_t{0}));
  }

  TrainCommand command_;
  Transport* transport_;
  TrainingData data_;
  Task task_;
  std::unique_ptr<Batches> rows_;
  Trainer trainer_;
  Saving saving_;
  Reports reports_;
  std::vector<double> makespans_;  // milliseconds, for the comparison with a plan
};

/// Refuses a folder with checkpoints of a different run, or with later checkpoints of this run.
void check_folder(const TrainCommand& command, const std::optional<Checkpoint>& from) {
  if (command.checkpoint.empty()) return;
  const std::vector<std::string> all = list_checkpoints(command.checkpoint);
  if (all.empty()) return;
  if (!from) {
    throw BadUsage(fmt::format(
        "--checkpoint {}: the folder has checkpoints; continue from them with --resume {}",
        command.checkpoint, command.checkpoint));
  }
  if (step_of_checkpoint(all.back()) > from->step) {
    throw BadUsage(
        fmt::format("--resume {}: there are later checkpoints ({}); move them away, or pass a "
                    "different folder with --checkpoint",
                    command.resume, fs::path(all.back()).filename().string()));
  }
}

}  // namespace

int train(TrainCommand command) {
  note_interrupts();
  std::optional<Checkpoint> checkpoint;
  try {
    std::map<std::string, std::vector<std::string>> then;
    const bool is_auto = command.resume == kNewest;
    if (is_auto) {
      if (command.checkpoint.empty()) {
        throw BadUsage("--resume auto continues from the folder of --checkpoint: pass that, too");
      }
      command.resume.clear();
      checkpoint = newest_readable(command.checkpoint, command.resume);
    } else if (!command.resume.empty()) {
      checkpoint = load_checkpoint(command.resume);
    }
    if (checkpoint) {
      const Json notes = json_from_text(checkpoint->notes);
      if (!notes.is_object() || !notes.contains("options")) {
        throw BadUsage(fmt::format("--resume {}: the checkpoint was not written by this program",
                                   command.resume));
      }
      notes["options"].get_to(then);
    }
    take_planned_replicas(command);
    take_launched_ranks(command, then);
    if (checkpoint) command = take_up(command, then);
    take_plan_file(command);
    if (!command.planned && is_schedule_file(command.schedule)) fit_to_schedule(command);
    // With `auto`, later checkpoints are damaged ones. They are replaced when training reaches
    // their steps.
    if (!is_auto) check_folder(command, checkpoint);
  } catch (const Error& error) {
    throw BadUsage(error.what());  // before training every error is one of usage
  }
  Ranks ranks(command);
  ranks.choose_device(command);
  if (command.plan == "auto" && command.replicas > 1 && ranks.are_threads()) {
    try {
      make_train_plan(command, TrainingData(command), nullptr);
    } catch (const Error& error) {
      throw BadUsage(error.what());
    }
  }
  std::mutex mutex;
  int32_t made = 0;
  return ranks.run([&](Transport* transport) {
    std::optional<Session> session;
    try {
      TrainCommand own = command;
      if (own.plan == "auto" && !own.planned) {
        const TrainingData data(own);
        make_train_plan(own, data, transport);
      }
      // Ranks that are threads of this process capture their models one after the other.
      const std::lock_guard lock(mutex);
      session.emplace(std::move(own), checkpoint, transport);
      if (++made == ranks.num_here()) checkpoint.reset();
    } catch (const Error& error) {
      throw BadUsage(error.what());
    }
    return session->run(ranks.describe());
  });
}

}  // namespace stagecraft::cli
