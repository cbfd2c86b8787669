#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/schedule/brute_force.h"
#include "tests/schedule/random.h"

/// Small changes to a schedule's text, for tests that ask whether a changed schedule is still good.
namespace stagecraft {

/// One action; no microbatch (-1) for UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD.
struct Part {
  int32_t stage = 0;
  std::string word;
  int32_t microbatch = -1;

  friend bool operator==(const Part&, const Part&) = default;
};
/// One field of a CSV line: nothing when idle, more than one part in an overlap.
using Field = std::vector<Part>;
using Fields = std::vector<std::vector<Field>>;

std::string to_text(const Field& field);
brute_force::Lists to_texts(const Fields& fields);

/// Makes one random change: drops, repeats, moves, swaps, renames or regroups something. About half
/// of the changes swap neighbours that commute in most schedules. Overlaps keep two or more parts
/// that are F, I, W or B.
void mutate(Fields& fields, const brute_force::Problem& problem, Random& random);

}  // namespace stagecraft
