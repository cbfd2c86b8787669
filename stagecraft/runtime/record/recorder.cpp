#include "stagecraft/runtime/record/recorder.h"

#include <utility>

namespace stagecraft {

void Recorder::start(std::size_t num_actions, Time zero) {
  zero_ = zero;
  around_ = kNone;
  is_waiting_ = false;
  set_current(kNone);
  recording_.actions.assign(num_actions, {});
  recording_.waits.clear();
  recording_.waits.reserve(2 * num_actions);
  recording_.bytes_sent = 0;
  recording_.bytes_received = 0;
  recording_.peak_memory.reset();
  recording_.held.clear();
  recording_.held_before = 0;
  recording_.device.clear();
  recording_.is_replayed = false;
  recording_.device_memory.reset();
}

void Recorder::set_replayed(RankRecording recording, Time zero) {
  zero_ = zero;
  around_ = kNone;
  is_waiting_ = false;
  set_current(kNone);
  recording_ = std::move(recording);
  for (RankRecording::ActionTimes& times : recording_.actions) {
    times = {.sent = times.sent};
  }
  recording_.waits.clear();
  recording_.device.clear();
  recording_.is_replayed = true;
}

void Recorder::start_memory(int64_t held_before) {
  recording_.held.assign(recording_.actions.size(), {});
  recording_.held_before = held_before;
}

void Recorder::add_sent(int64_t bytes) {
  recording_.bytes_sent += bytes;
  if (const std::optional<std::size_t> offset = current())
    recording_.actions[*offset].sent += bytes;
}

void Recorder::begin(std::size_t offset, Time now) {
  RankRecording::ActionTimes& times = recording_.actions[offset];
  if (times.begin < 0) times.begin = since_zero(now);
  const std::size_t current = current_.load(std::memory_order_relaxed);
  if (current != offset) around_ = current;
  set_current(offset);
}

void Recorder::end(std::size_t offset, Time now) {
  recording_.actions[offset].end = since_zero(now);
  set_current(offset == around_ ? kNone : around_);
  if (offset == around_) around_ = kNone;
}

void Recorder::begin_wait(std::size_t offset, Time now) {
  recording_.waits.push_back({.offset = offset, .begin = since_zero(now)});
  is_waiting_ = true;
}

void Recorder::end_wait(Time sent, Time now) {
  RankRecording::Wait& wait = recording_.waits.back();
  wait.end = since_zero(now);
  wait.sent = since_zero(sent);
  recording_.actions[wait.offset].waited += wait.end - wait.begin;
  is_waiting_ = false;
}

void Recorder::stop(Time now) {
  // No value arrived, so the whole wait counts as a wait for a value that was not sent.
  if (is_waiting_) end_wait(now, now);
  while (const std::optional<std::size_t> offset = current()) end(*offset, now);
}

RankRecording Recorder::take() {
  set_current(kNone);
  around_ = kNone;
  is_waiting_ = false;
  return std::exchange(recording_, {});
}

}  // namespace stagecraft
