#include "stagecraft/runtime/stage_gathers.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

StageGathers::StageGathers(Transport& transport, ParameterShards* shards, Recorder& recorder,
                           ProgressMark& progress)
    : transport_(transport), shards_(shards), recorder_(recorder), progress_(progress) {
  if (shards == nullptr || shards->kind() != ShardKind::kParameters) return;
  for (const auto& unit : shards->units()) units_.push_back({.unit = unit.get()});
}

bool StageGathers::is_active(StageId stage) const {
  return std::ranges::find(active_, stage) != active_.end();
}

void StageGathers::start(uint64_t step) {
  if (!is_on()) return;
  step_ = step;
  abandon();
}

void StageGathers::unshard(StageId stage) {
  if (!is_on() || is_active(stage)) return;
  active_.push_back(stage);
  for (ShardUnit* const unit : shards_->units_of(stage)) {
    Gathered& entry = entry_of(*unit);
    if (entry.users++ > 0) continue;
    unit->allocate();
    const TransferId id{step_, Direction::kWeights, unit->stage(), StageId(unit->number()),
                        MicrobatchId(entry.gathers++)};
    entry.gather.emplace(transport_, shards_->group(), id, unit->flat(), unit->piece());
  }
}

void StageGathers::keep_sends(Gathered& entry) {
  for (PendingPtr& send : entry.gather->take_sends()) sends_.push_back(std::move(send));
  entry.gather.reset();
}

void StageGathers::poll() {
  for (Gathered& entry : units_) {
    if (!entry.gather) continue;
    entry.gather->advance();
    if (entry.gather->is_done()) keep_sends(entry);
  }
}

void StageGathers::wait(StageId stage, std::size_t offset, Deadline deadline) {
  if (!is_on()) return;
  unshard(stage);
  for (ShardUnit* const unit : shards_->units_of(stage)) {
    Gathered& entry = entry_of(*unit);
    if (!entry.gather) continue;
    if (!entry.gather->poll()) {
      const ProgressMark::Waiting waiting(progress_, "sharded weights");
      recorder_.begin_wait(offset, RankRecording::Wait::For::kWeights);
      entry.gather->wait(deadline);
      recorder_.end_wait(entry.gather->sent());
    }
    keep_sends(entry);
  }
}

void StageGathers::reshard(StageId stage, Deadline deadline) {
  const auto found = std::ranges::find(active_, stage);
  if (!is_on() || found == active_.end()) return;
  active_.erase(found);
  for (ShardUnit* const unit : shards_->units_of(stage)) {
    Gathered& entry = entry_of(*unit);
    if (--entry.users > 0) continue;
    if (entry.gather) {
      const ProgressMark::Waiting waiting(progress_, "sharded weights");
      entry.gather->wait(deadline);
      keep_sends(entry);
    }
    unit->check_unwritten();
    unit->release();
  }
}

void StageGathers::finish(Deadline deadline) {
  if (!is_on()) return;
  while (!active_.empty()) reshard(active_.back(), deadline);
  const ProgressMark::Waiting waiting(progress_, "the other replicas to take weights");
  for (const PendingPtr& send : std::exchange(sends_, {})) transport_.wait_send(send, deadline);
}

void StageGathers::abandon() {
  active_.clear();
  sends_.clear();
  for (Gathered& entry : units_) {
    entry.users = 0;
    entry.gathers = 0;
    entry.gather.reset();
    entry.unit->release();
  }
}

}  // namespace stagecraft
