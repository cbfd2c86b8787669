#include "stagecraft/runtime/gathered_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

/// 100 ms. Ranks of one machine leave a barrier within less time. The clocks of two machines count
/// from the start of each machine, and differ by more.
constexpr int64_t kSameClock = 100'000'000;

/// Reads the numbers in the order in which `write` wrote them.
class Reader {
 public:
  explicit Reader(std::vector<int64_t> numbers) : numbers_(std::move(numbers)) {}

  int64_t next() {
    require<MetadataError>(at_ < numbers_.size(), "the recording of a different rank is truncated");
    return numbers_[at_++];
  }
  std::size_t count() { return static_cast<std::size_t>(next()); }

 private:
  std::vector<int64_t> numbers_;
  std::size_t at_ = 0;
};

void write(std::vector<int64_t>& out, const RankRecording& recording) {
  out.insert(out.end(), {recording.bytes_sent, recording.bytes_received,
                         recording.peak_memory.value_or(-1), recording.held_before});
  out.push_back(static_cast<int64_t>(recording.actions.size()));
  for (const auto& action : recording.actions) {
    out.insert(out.end(), {action.begin, action.end, action.waited, action.sent});
  }
  out.push_back(static_cast<int64_t>(recording.waits.size()));
  for (const auto& wait : recording.waits) {
    out.insert(out.end(), {static_cast<int64_t>(wait.offset), static_cast<int64_t>(wait.what),
                           wait.begin, wait.end, wait.sent});
  }
  out.push_back(static_cast<int64_t>(recording.held.size()));
  for (const auto& held : recording.held) out.insert(out.end(), {held.most, held.after});
  out.push_back(static_cast<int64_t>(recording.device.size()));
  for (const auto& device : recording.device) {
    out.insert(out.end(), {device.begin, device.ready, device.end});
  }
  out.push_back(recording.is_replayed ? 1 : 0);
  out.push_back(recording.device_memory ? 1 : 0);
  if (const auto& memory = recording.device_memory) {
    out.insert(out.end(), {memory->allocated, memory->peak_allocated, memory->reserved});
  }
}

RankRecording read_recording(Reader& in) {
  RankRecording recording;
  recording.bytes_sent = in.next();
  recording.bytes_received = in.next();
  if (const int64_t peak = in.next(); peak >= 0) recording.peak_memory = peak;
  recording.held_before = in.next();
  for (std::size_t n = in.count(); n > 0; --n) {
    auto& action = recording.actions.emplace_back();
    for (int64_t* number : {&action.begin, &action.end, &action.waited, &action.sent}) {
      *number = in.next();
    }
  }
  for (std::size_t n = in.count(); n > 0; --n) {
    auto& wait = recording.waits.emplace_back();
    wait.offset = in.count();
    wait.what = static_cast<RankRecording::Wait::For>(in.next());
    for (int64_t* number : {&wait.begin, &wait.end, &wait.sent}) *number = in.next();
  }
  for (std::size_t n = in.count(); n > 0; --n) {
    auto& held = recording.held.emplace_back();
    held.most = in.next();
    held.after = in.next();
  }
  for (std::size_t n = in.count(); n > 0; --n) {
    auto& device = recording.device.emplace_back();
    for (int64_t* number : {&device.begin, &device.ready, &device.end}) *number = in.next();
  }
  recording.is_replayed = in.next() != 0;
  if (in.next() != 0) {
    RankRecording::DeviceMemory memory;
    for (int64_t* number : {&memory.allocated, &memory.peak_allocated, &memory.reserved}) {
      *number = in.next();
    }
    recording.device_memory = memory;
  }
  return recording;
}

void write(std::vector<int64_t>& out, const StageMemory& memory) {
  out.insert(out.end(), {memory.stage.value(), memory.parameters, memory.gradients});
  for (const ActionMemory& action : memory.actions) {
    out.insert(out.end(), {action.is_measured ? 1 : 0, action.change, action.peak});
  }
}

StageMemory read_memory(Reader& in) {
  StageMemory memory;
  memory.stage = StageId(static_cast<int32_t>(in.next()));
  memory.parameters = in.next();
  memory.gradients = in.next();
  for (ActionMemory& action : memory.actions) {
    action.is_measured = in.next() != 0;
    action.change = in.next();
    action.peak = in.next();
  }
  return memory;
}

void shift(RankRecording& recording, int64_t by) {
  for (auto& action : recording.actions) {
    if (action.begin >= 0) action.begin += by;
    if (action.end >= 0) action.end += by;
  }
  for (auto& wait : recording.waits) {
    wait.begin += by;
    if (wait.end >= 0) wait.end += by;
    wait.sent += by;
  }
  for (auto& device : recording.device) {
    for (int64_t* time : {&device.begin, &device.ready, &device.end}) {
      if (*time >= 0) *time += by;
    }
  }
}

}  // namespace

StageState state_of(const Stage& stage) {
  StageState state{.device = stage.device().str()};
  for (const auto& [name, parameter] : stage.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    state.parameters += parameter.numel();
    state.parameter_bytes += bytes;
    if (parameter.requires_grad()) state.gradient_bytes += bytes;
  }
  return state;
}

c10::IValue to_value(const GatheredRank& rank) {
  std::vector<int64_t> numbers = {rank.zero, rank.met};
  write(numbers, rank.recording);
  numbers.push_back(static_cast<int64_t>(rank.memory.size()));
  for (const StageMemory& memory : rank.memory) write(numbers, memory);
  numbers.push_back(static_cast<int64_t>(rank.stages.size()));
  c10::List<std::string> devices;
  for (const StageState& stage : rank.stages) {
    numbers.insert(numbers.end(), {stage.parameters, stage.parameter_bytes, stage.gradient_bytes});
    devices.push_back(stage.device);
  }
  return c10::ivalue::Tuple::create(c10::IValue(std::move(numbers)), c10::IValue(devices));
}

GatheredRank gathered_rank_of(const c10::IValue& value) {
  const auto& parts = value.toTupleRef().elements();
  Reader in(parts[0].toIntVector());
  const c10::List<c10::IValue> devices = parts[1].toList();
  GatheredRank rank;
  rank.zero = in.next();
  rank.met = in.next();
  rank.recording = read_recording(in);
  for (std::size_t n = in.count(); n > 0; --n) rank.memory.push_back(read_memory(in));
  const std::size_t stages = in.count();
  for (std::size_t s = 0; s < stages; ++s) {
    StageState& state = rank.stages.emplace_back();
    state.parameters = in.next();
    state.parameter_bytes = in.next();
    state.gradient_bytes = in.next();
    state.device = devices.get(s).toStringRef();
  }
  return rank;
}

void align(std::span<GatheredRank> ranks) {
  if (ranks.empty()) return;
  const int64_t met = ranks.front().met;
  for (GatheredRank& rank : ranks) {
    // Moves the rank to the clock of the first rank.
    if (std::abs(rank.met - met) > kSameClock) rank.zero += met - rank.met;
  }
  const int64_t first =
      std::min_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
        return a.zero < b.zero;
      })->zero;
  for (GatheredRank& rank : ranks) shift(rank.recording, rank.zero - first);
}

}  // namespace stagecraft
