#include "tests/schedule/mutations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace stagecraft {
namespace {

using List = std::vector<Field>;

bool is_compute(const Field& field) {
  return !field.empty() &&
         std::ranges::all_of(field, [](const Part& part) { return part.word.size() == 1; });
}

List::iterator at_offset(List& list, std::size_t at) {
  return list.begin() + static_cast<std::ptrdiff_t>(at);
}

Field take(List& list, std::size_t at) {
  Field field = std::move(list[at]);
  list.erase(at_offset(list, at));
  return field;
}

void insert(List& list, Field field, Random& random) {
  list.insert(at_offset(list, random.below(list.size() + 1)), std::move(field));
}

std::string random_stage_word(Random& random) {
  static constexpr std::array<std::string_view, 4> kWords = {"UNSHARD", "RESHARD", "REDUCE_GRAD",
                                                             "WAIT_REDUCE_GRAD"};
  return std::string(kWords[random.below(kWords.size())]);
}

void change_word(Part& part, bool in_overlap, Random& random) {
  static constexpr std::array<std::string_view, 10> kWords = {
      "F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B"};
  part.word = part.microbatch < 0
                  ? random_stage_word(random)
                  : std::string(kWords[random.below(in_overlap ? 4 : kWords.size())]);
}

// Another stage, microbatch or word for one action; numbers may be one too large.
void retarget(Field& field, const brute_force::Problem& problem, Random& random) {
  if (field.empty()) {
    return;
  }
  Part& part = field[random.below(field.size())];
  switch (random.below(3)) {
    case 0:
      part.stage = random.between(0, static_cast<int32_t>(problem.rank_of.size()));
      break;
    case 1:
      if (part.microbatch >= 0) {
        part.microbatch = random.between(0, problem.microbatches);
      }
      break;
    default:
      change_word(part, field.size() > 1, random);
  }
}

// The same work in other slots: B as I and W or back, an overlap as its parts or back.
void regroup(List& list, std::size_t at, Random& random) {
  if (list[at].size() > 1) {
    const Field parts = take(list, at);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      list.insert(at_offset(list, at + i), Field{parts[i]});
    }
  } else if (list[at].size() == 1 && list[at].front().word == "B") {
    Part weight = list[at].front();
    list[at].front().word = "I";
    weight.word = "W";
    list.insert(at_offset(list, at + 1), Field{weight});
  } else if (at + 1 < list.size() && is_compute(list[at]) && is_compute(list[at + 1])) {
    const Field next = take(list, at + 1);
    if (next.size() == 1 && list[at].front().word == "I" && next.front().word == "W" &&
        random.one_in(2)) {
      list[at].front().word = "B";
    } else {
      std::ranges::copy(next, std::back_inserter(list[at]));
    }
  }
}

void swap_microbatches(List& list, int32_t a, int32_t b) {
  for (Field& field : list) {
    for (Part& part : field) {
      if (part.microbatch == a) {
        part.microbatch = b;
      } else if (part.microbatch == b) {
        part.microbatch = a;
      }
    }
  }
}

// A few places up or down: what turns an order into one in which ranks wait for each other.
void shift(List& list, std::size_t at, Random& random) {
  const std::size_t by = 1 + random.below(5);
  if (random.one_in(2)) {
    const std::size_t to = std::min(at + by, list.size() - 1);
    std::rotate(at_offset(list, at), at_offset(list, at + 1), at_offset(list, to + 1));
  } else {
    const std::size_t to = at < by ? 0 : at - by;
    std::rotate(at_offset(list, to), at_offset(list, at), at_offset(list, at + 1));
  }
}

// Swaps neighbours. The second one seldom needs the first or waits for other actions.
void swap_commuting(List& list, Random& random) {
  for (int tries = 0; tries < 10; ++tries) {
    const std::size_t at = random.below(list.size() - 1);
    if (list[at].size() != 1 || list[at + 1].size() != 1) {
      continue;
    }
    const Part& first = list[at][0];
    const Part& second = list[at + 1][0];
    const bool related = first.stage == second.stage && first.microbatch == second.microbatch;
    if (!related && (second.word.starts_with("RECV") || first.word == "W" ||
                     (first.word.starts_with("SEND") && second.word == "W") ||
                     (first.word == second.word && first.stage != second.stage))) {
      std::swap(list[at], list[at + 1]);
      return;
    }
  }
}

}  // namespace

std::string to_text(const Field& field) {
  std::string text;
  for (const Part& part : field) {
    text += (text.empty() ? "" : ";") + std::to_string(part.stage) + part.word +
            (part.microbatch < 0 ? "" : std::to_string(part.microbatch));
  }
  return field.size() > 1 ? "(" + text + ")OVERLAP_F_B" : text;
}

brute_force::Lists to_texts(const Fields& fields) {
  brute_force::Lists texts;
  for (const List& list : fields) {
    std::ranges::transform(list, std::back_inserter(texts.emplace_back()), to_text);
  }
  return texts;
}

void mutate(Fields& fields, const brute_force::Problem& problem, Random& random) {
  List& list = fields[random.below(fields.size())];
  if (list.size() < 2) {
    insert(list, Field(), random);
    return;
  }
  const std::size_t at = random.below(list.size());
  switch (random.below(22)) {
    case 0:
      take(list, at);
      break;
    case 1:
      insert(list, Field(list[at]), random);
      break;
    case 2:
      std::swap(list[at], list[random.below(list.size())]);
      break;
    case 3:
      insert(list, take(list, at), random);
      break;
    case 4:
      insert(fields[random.below(fields.size())], take(list, at), random);
      break;
    case 5:
    case 6:
      retarget(list[at], problem, random);
      break;
    case 7:
      insert(list, Field(), random);
      break;
    case 8: {
      const int32_t stage = random.between(0, static_cast<int32_t>(problem.rank_of.size()) - 1);
      insert(list, {{.stage = stage, .word = random_stage_word(random)}}, random);
      break;
    }
    case 9:
      regroup(list, at, random);
      break;
    case 10: {
      const int32_t a = random.between(0, problem.microbatches - 1);
      const int32_t b = random.between(0, problem.microbatches - 1);
      // On every rank, the schedule stays good.
      for (List& other : fields) {
        if (&other == &list || a < b) {
          swap_microbatches(other, a, b);
        }
      }
      break;
    }
    case 11:
    case 12:
      shift(list, at, random);
      break;
    case 13:
    case 14:
      std::swap(list[at], list[at + 1 < list.size() ? at + 1 : at - 1]);
      break;
    default:
      swap_commuting(list, random);
  }
}

}  // namespace stagecraft
