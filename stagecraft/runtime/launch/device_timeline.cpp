#include "stagecraft/runtime/launch/device_timeline.h"

#include <algorithm>
#include <chrono>

namespace stagecraft::detail {

void DeviceTimeline::start(std::size_t num_actions) {
  if (!marks_) return;
  if (kind_ == Kind::kEach) marks_->clear();
  places_.assign(num_actions, {});
  ends_.clear();
  complete_ = 0;
}

std::size_t DeviceTimeline::num_complete() {
  if (!marks_ || kind_ == Kind::kChain) return complete_;
  while (complete_ < ends_.size() && marks_->is_reached(ends_[complete_])) ++complete_;
  return complete_;
}

std::size_t DeviceTimeline::last() {
  return marks_->size() == 0 ? marks_->set() : marks_->size() - 1;
}

void DeviceTimeline::begin(std::size_t offset) {
  if (offset >= places_.size() || places_[offset].begin != kNone) return;
  places_[offset].begin = kind_ == Kind::kChain ? last() : marks_->set();
}

void DeviceTimeline::ready(std::size_t offset) {
  if (offset >= places_.size() || kind_ == Kind::kChain) return;
  places_[offset].ready = marks_->set();
}

void DeviceTimeline::end(std::size_t offset, bool is_compute) {
  if (offset >= places_.size()) return;
  places_[offset].end = kind_ == Kind::kChain && !is_compute ? last() : marks_->set();
  ends_.push_back(places_[offset].end);
}

std::vector<RankRecording::DeviceTimes> DeviceTimeline::read(Recorder::Time zero) const {
  if (!marks_ || places_.empty()) return {};
  const std::vector<int64_t> times = marks_->read();
  const int64_t begin =
      std::chrono::duration_cast<std::chrono::nanoseconds>(zero.time_since_epoch()).count();
  const auto since_zero = [&](std::size_t mark) {
    // The clocks are aligned to a few microseconds only, so a time can come out negative.
    return mark < times.size() ? std::max<int64_t>(times[mark] - begin, 0) : int64_t{-1};
  };
  std::vector<RankRecording::DeviceTimes> result;
  for (const Places& each : places_) {
    result.push_back({since_zero(each.begin), since_zero(each.ready), since_zero(each.end)});
  }
  return result;
}

}  // namespace stagecraft::detail
