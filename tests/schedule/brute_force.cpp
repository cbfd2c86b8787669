#include "tests/schedule/brute_force.h"

#include <algorithm>
#include <cstddef>

namespace brute_force {
namespace {

enum Word {
  kF,
  kI,
  kW,
  kB,
  kSendF,
  kRecvF,
  kSendB,
  kRecvB,
  kWaitSendF,
  kWaitSendB,
  kUnshard,
  kReshard,
  kReduceGrad,
  kWaitReduceGrad,
  kWords
};
constexpr const char* kTexts[kWords] = {"F",           "I",
                                        "W",           "B",
                                        "SEND_F",      "RECV_F",
                                        "SEND_B",      "RECV_B",
                                        "WAIT_SEND_F", "WAIT_SEND_B",
                                        "UNSHARD",     "RESHARD",
                                        "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

struct Act {
  int stage = 0;
  Word word = kF;
  int microbatch = -1;  // none for UNSHARD and those after it

  bool is_compute() const { return word <= kB; }
};

using Slot = std::vector<Act>;  // more than one for an overlap

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Reads STAGE WORD [MICROBATCH]; false when the text is something else.
bool read_act(const std::string& text, Act& act) {
  std::string stage;
  std::string word;
  std::string microbatch;
  for (const char c : text) {
    if (is_digit(c)) {
      (word.empty() ? stage : microbatch) += c;
    } else if (!microbatch.empty()) {
      return false;
    } else {
      word += c;
    }
  }
  int found = 0;
  while (found < kWords && word != kTexts[found]) {
    ++found;
  }
  if (found == kWords || stage.empty() || microbatch.empty() != (found >= kUnshard)) {
    return false;
  }
  act.stage = std::stoi(stage);
  act.word = static_cast<Word>(found);
  act.microbatch = microbatch.empty() ? -1 : std::stoi(microbatch);
  return true;
}

bool read_slot(const std::string& text, Slot& slot) {
  slot.clear();
  if (text.empty()) {
    return true;
  }
  Act act;
  if (text[0] != '(') {
    slot.resize(1);
    return read_act(text, slot[0]);
  }
  const std::size_t close = text.find(')');
  if (close == std::string::npos || text.substr(close) != ")OVERLAP_F_B") {
    return false;
  }
  for (std::size_t start = 1; start <= close;) {
    const std::size_t end = std::min(text.find(';', start), close);
    if (!read_act(text.substr(start, end - start), act) || !act.is_compute()) {
      return false;
    }
    slot.push_back(act);
    start = end + 1;
  }
  return slot.size() >= 2;
}

class Executor {
 public:
  Executor(const Lists& lists, const Problem& problem) : lists_(lists), problem_(problem) {}

  Answer run() {
    if (!read()) {
      return Answer::kBadText;
    }
    if (!placed()) {
      return Answer::kMisplaced;
    }
    if (!complete()) {
      return Answer::kIncomplete;
    }
    if (!sharding_fits()) {
      return Answer::kBadSharding;
    }
    return executes() ? Answer::kExecutable : Answer::kStuck;
  }
  const std::vector<std::string>& stuck() const { return stuck_; }

 private:
  int stages() const { return static_cast<int>(problem_.rank_of.size()); }
  int rank_of(int stage) const { return problem_.rank_of[static_cast<std::size_t>(stage)]; }
  // Where the counts of an action are; microbatch -1 has a place too.
  std::size_t place(int stage, Word word, int microbatch) const {
    const int per_word = problem_.microbatches + 1;
    const int at = (stage * kWords + word) * per_word + microbatch + 1;
    return static_cast<std::size_t>(at);
  }
  int count(int stage, Word word, int microbatch) const {
    return counts_[place(stage, word, microbatch)];
  }
  bool done(int stage, Word word, int microbatch) const {
    return done_[place(stage, word, microbatch)];
  }
  bool backward_done(int stage, int microbatch) const {
    return done(stage, kB, microbatch) || done(stage, kI, microbatch);
  }
  bool has_far_consumer(int stage) const {
    for (const auto& [from, to] : problem_.edges) {
      if (from == stage && rank_of(from) != rank_of(to)) {
        return true;
      }
    }
    return false;
  }
  bool has_far_producer(int stage) const {
    for (const auto& [from, to] : problem_.edges) {
      if (to == stage && rank_of(from) != rank_of(to)) {
        return true;
      }
    }
    return false;
  }

  bool read() {
    slots_.resize(lists_.size());
    for (std::size_t r = 0; r < lists_.size(); ++r) {
      for (const std::string& field : lists_[r]) {
        Slot slot;
        if (!read_slot(field, slot) || (problem_.lowered && slot.empty())) {
          return false;
        }
        slots_[r].push_back(slot);
      }
    }
    return true;
  }

  bool placed() {
    counts_.assign(place(stages(), kF, -1), 0);
    for (std::size_t r = 0; r < slots_.size(); ++r) {
      for (const Slot& slot : slots_[r]) {
        for (const Act& act : slot) {
          if (act.stage >= stages() || rank_of(act.stage) != static_cast<int>(r) ||
              act.microbatch >= problem_.microbatches) {
            return false;
          }
          ++counts_[place(act.stage, act.word, act.microbatch)];
        }
      }
    }
    return true;
  }

  bool has_waits() const {
    for (const std::vector<Slot>& list : slots_) {
      for (const Slot& slot : list) {
        for (const Act& act : slot) {
          if (act.word == kWaitSendF || act.word == kWaitSendB) {
            return true;
          }
        }
      }
    }
    return false;
  }

  bool complete() const {
    const bool waits = has_waits();
    for (int s = 0; s < stages(); ++s) {
      const bool sends = problem_.lowered && has_far_consumer(s);
      const bool receives = problem_.lowered && has_far_producer(s);
      const bool back = problem_.backward;
      for (int m = 0; m < problem_.microbatches; ++m) {
        const int whole = count(s, kB, m);
        const int input = count(s, kI, m);
        const int weight = count(s, kW, m);
        const bool one_backward = back ? (whole == 1 && input == 0 && weight == 0) ||
                                             (whole == 0 && input == 1 && weight == 1)
                                       : whole + input + weight == 0;
        if (count(s, kF, m) != 1 || !one_backward || count(s, kSendF, m) != (sends ? 1 : 0) ||
            count(s, kRecvF, m) != (receives ? 1 : 0) ||
            count(s, kSendB, m) != (back && receives ? 1 : 0) ||
            count(s, kRecvB, m) != (back && sends ? 1 : 0) ||
            count(s, kWaitSendF, m) != (waits ? count(s, kSendF, m) : 0) ||
            count(s, kWaitSendB, m) != (waits ? count(s, kSendB, m) : 0)) {
          return false;
        }
      }
    }
    return true;
  }

  bool sharding_fits() const {
    int reduced = 0;
    int awaited = 0;
    for (int s = 0; s < stages(); ++s) {
      const bool sharded = count(s, kUnshard, -1) > 0 || count(s, kReshard, -1) > 0;
      bool open = false;
      bool reduced_this = false;
      bool awaited_this = false;
      for (const Slot& slot : slots_[static_cast<std::size_t>(rank_of(s))]) {
        for (const Act& act : slot) {
          if (act.stage != s) {
            continue;
          }
          if (act.word == kUnshard || act.word == kReshard) {
            if (open == (act.word == kUnshard)) {
              return false;
            }
            open = !open;
          } else if (act.word == kReduceGrad) {
            if (reduced_this) {
              return false;
            }
            reduced_this = true;
            ++reduced;
          } else if (act.word == kWaitReduceGrad) {
            if (awaited_this || !reduced_this) {
              return false;
            }
            awaited_this = true;
            ++awaited;
          } else if (act.is_compute()) {
            if ((sharded && !open) || (reduced_this && (act.word == kB || act.word == kW))) {
              return false;
            }
          }
        }
      }
      if (open) {
        return false;
      }
    }
    return (awaited == 0 || awaited == reduced) &&
           (reduced == 0 || (problem_.backward && reduced == stages()));
  }

  // Everything that has to be done before the action can be.
  bool ready(const Act& act) const {
    const int s = act.stage;
    const int m = act.microbatch;
    const Word w = act.word;
    if (w == kW) {
      return done(s, kI, m);
    }
    if (w == kSendF && !done(s, kF, m)) {
      return false;
    }
    if (w == kSendB && !backward_done(s, m)) {
      return false;
    }
    if ((w == kWaitSendF && !done(s, kSendF, m)) || (w == kWaitSendB && !done(s, kSendB, m))) {
      return false;
    }
    const bool backward = w == kB || w == kI;
    if (backward && !done(s, kF, m)) {
      return false;
    }
    for (const auto& [from, to] : problem_.edges) {
      const bool far = rank_of(from) != rank_of(to);
      const bool written = far && problem_.lowered;
      if (w == kF && to == s &&
          !(written ? done(s, kRecvF, m) && done(from, kSendF, m) : done(from, kF, m))) {
        return false;
      }
      if (backward && from == s &&
          !(written ? done(s, kRecvB, m) && done(to, kSendB, m) : backward_done(to, m))) {
        return false;
      }
      // Where waits are written, they last until the receives are there; otherwise sends do.
      if (w == (waits_ ? kWaitSendF : kSendF) && from == s && far && !done(to, kRecvF, m)) {
        return false;
      }
      if (w == (waits_ ? kWaitSendB : kSendB) && to == s && far && !done(from, kRecvB, m)) {
        return false;
      }
    }
    return true;
  }

  bool executes() {
    waits_ = has_waits();
    done_.assign(counts_.size(), false);
    std::vector<std::size_t> next(slots_.size(), 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < slots_.size(); ++r) {
        while (next[r] < slots_[r].size()) {
          const Slot& slot = slots_[r][next[r]];
          bool all = true;
          for (const Act& act : slot) {
            all = all && ready(act);
          }
          if (!all) {
            break;
          }
          for (const Act& act : slot) {
            done_[place(act.stage, act.word, act.microbatch)] = true;
          }
          ++next[r];
          moved = true;
        }
      }
    }
    for (std::size_t r = 0; r < slots_.size(); ++r) {
      if (next[r] < slots_[r].size()) {
        stuck_.push_back(lists_[r][next[r]]);
      }
    }
    return stuck_.empty();
  }

  const Lists& lists_;
  const Problem& problem_;
  std::vector<std::vector<Slot>> slots_;
  bool waits_ = false;
  std::vector<int> counts_;
  std::vector<bool> done_;
  std::vector<std::string> stuck_;
};

}  // namespace

Answer answer(const Lists& lists, const Problem& problem, std::vector<std::string>* stuck) {
  Executor executor(lists, problem);
  const Answer answer = executor.run();
  if (stuck != nullptr) {
    *stuck = executor.stuck();
  }
  return answer;
}

}  // namespace brute_force
