#include "cli/train/ranks.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "cli/failure.h"
#include "stagecraft/transport/environment.h"
#include "stagecraft/transport/world/launcher.h"

namespace stagecraft::cli {
namespace {

/// Nothing if there is only one process and the command names no transport between processes.
std::optional<detail::Launch> find_launch(const TrainCommand& command) {
  const auto launch = detail::find_launch();
  const bool is_asked_for = command.transport != "auto" && command.transport != "local";
  return launch && launch->num_ranks == 1 && !is_asked_for ? std::nullopt : launch;
}

/// Options that all processes must have in common.
Fingerprint fingerprint_of(const TrainCommand& command) {
  Fingerprint fingerprint;
  for (const auto& [name, values] : command.given) {
    fingerprint.emplace_back(name, fmt::format("{}", fmt::join(values, " ")));
  }
  for (const auto& [name, file] :
       {std::pair("--resume", command.resume), std::pair("--save-weights", command.save_weights),
        std::pair("--report", command.report), std::pair("--report-json", command.report_json),
        std::pair("--trace", command.trace)}) {
    if (!file.empty()) fingerprint.emplace_back(name, file);
  }
  return fingerprint;
}

/// A transport allocates received values on its own thread, so a thread that measures memory frees
/// blocks that it did not see allocated. Drops torch's warning about that.
class WithoutUnseenBlocks : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (!warning.msg().starts_with("Memory block of unknown size"))
      WarningHandler::process(warning);
  }
};

}  // namespace

void take_launched_ranks(TrainCommand& command,
                         const std::map<std::string, std::vector<std::string>>& then) {
  const auto launch = find_launch(command);
  if (!launch || command.given.contains("--ranks")) return;
  const auto replicas_then = then.find("--replicas");
  const int32_t replicas =
      command.given.contains("--replicas") || replicas_then == then.end()
          ? command.replicas
          : static_cast<int32_t>(detail::number_in("--replicas", replicas_then->second.front(), 1,
                                                   std::numeric_limits<int32_t>::max()));
  if (launch->num_ranks % replicas != 0) {
    throw BadUsage(fmt::format("--replicas {} does not divide the {} processes that {} started",
                               replicas, launch->num_ranks, detail::name_of(launch->kind)));
  }
  command.ranks = launch->num_ranks / replicas;
  const std::vector<std::string> words = {std::to_string(command.ranks)};
  const auto ranks_then = then.find("--ranks");
  if (ranks_then == then.end() || ranks_then->second != words) command.given["--ranks"] = words;
}

Ranks::Ranks(const TrainCommand& command) : ranks_(command.ranks), replicas_(command.replicas) {
  const bool is_launched = find_launch(command).has_value();
  const bool is_local = command.transport == "local" || command.transport == "auto";
  if (!is_launched && is_local && replicas_ == 1) return;
  const std::string name = is_launched || !is_local ? command.transport : "local";
  if (name == "nccl" && command.device == "cpu") {
    throw BadUsage("--transport nccl carries tensors of a GPU: pass --device cuda");
  }
  try {
    world_.emplace(World::from_environment(
        {.transport = name, .ranks = ranks_ * replicas_, .fingerprint = fingerprint_of(command)}));
  } catch (const ArgumentError& error) {
    throw BadUsage(error.what());
  }
}

int32_t Ranks::num_here() const {
  return world_ && world_->is_local() ? world_->num_ranks() : 1;
}

std::string Ranks::describe() const {
  return fmt::format("{}{} ranks{}", replicas_ > 1 ? fmt::format("{} x ", replicas_) : "", ranks_,
                     world_ && !world_->is_local() ? " over " + world_->transport_name() : "");
}

void Ranks::choose_device(TrainCommand& command) const {
  if (!world_ || world_->is_local() || command.device != "cuda") return;
  if (!at::globalContext().hasCUDA()) return;  // make_task reports the missing device
  const int32_t devices = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
  command.device = fmt::format("cuda:{}", world_->local_rank() % devices);
}

int Ranks::run(const std::function<int(Transport*)>& body) {
  if (!world_) return body(nullptr);
  int status = kFailed;
  world_->run([&](Transport& transport) {
    WithoutUnseenBlocks warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    const int own = body(&transport);
    if (!world_->is_local() || transport.rank() == Rank(0)) status = own;
  });
  return status;
}

StepNotes agree_on_notes(const StepNotes& own, Transport* transport, double timeout) {
  if (transport == nullptr) return own;
  constexpr int64_t kSaveIsDue = 1 << 8;  // above all signals
  const auto wait =
      std::chrono::duration_cast<Deadline::Clock::duration>(std::chrono::duration<double>(timeout));
  const std::vector<c10::IValue> ranks =
      transport->all_gather(own.signal + (own.is_save_due ? kSaveIsDue : 0), Deadline::after(wait));
  StepNotes notes{.is_save_due = ranks.front().toInt() >= kSaveIsDue};
  for (const c10::IValue& rank : ranks) {
    notes.signal = std::max(notes.signal, static_cast<int>(rank.toInt() % kSaveIsDue));
  }
  return notes;
}

}  // namespace stagecraft::cli
