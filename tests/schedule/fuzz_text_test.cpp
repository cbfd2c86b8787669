#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/text.h"
#include "stagecraft/schedule/verify.h"
#include "tests/schedule/random.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using namespace std::string_view_literals;

Action random_action(Random& random, bool compute_only) {
  const auto type = static_cast<ActionType>(
      random.below(compute_only ? 4 : static_cast<std::size_t>(ActionType::kOverlap)));
  const StageId stage(random.between(0, random.one_in(200) ? 5'000 : 20));
  if (!has_microbatch(type)) {
    return {stage, type};
  }
  return {stage, type,
          MicrobatchId(random.between(0, random.one_in(20) ? Action::kMaxMicrobatch : 20))};
}

// Any lists at all; few of them can be executed.
std::vector<ActionList> random_lists(Random& random) {
  std::vector<ActionList> lists(1 + random.below(5));
  const bool compute_only = random.one_in(2);
  for (ActionList& list : lists) {
    for (std::size_t slots = random.below(12); slots > 0; --slots) {
      if (random.one_in(5)) {
        list.emplace_back();
      } else if (random.one_in(6)) {
        const int32_t parts = 2 + random.between(0, 2);
        list.push_back(Action::overlap(parts));
        std::generate_n(std::back_inserter(list), parts,
                        [&] { return random_action(random, true); });
      } else {
        list.push_back(random_action(random, compute_only));
      }
    }
  }
  return lists;
}

// A text that is worth changing: what a builder makes, as it is or lowered.
std::string random_csv(Random& random) {
  for (;;) {
    const ScheduleKind& kind = schedule_kinds()[random.below(schedule_kinds().size())];
    try {
      const Schedule schedule =
          kind.build({.ranks = 1 + random.between(0, 2), .microbatches = 1 + random.between(0, 3)});
      return to_csv(random.one_in(3) ? lower(schedule) : schedule);
    } catch (const ArgumentError&) {
    }
  }
}

std::string random_bytes(Random& random) {
  static constexpr std::array kTexts = {
      "\r"sv,          "\n"sv,       "\r\n"sv, "\""sv,   "\"\""sv, ","sv,  ";"sv,
      "("sv,           ")"sv,        " "sv,    "\t"sv,   "F"sv,    "B"sv,  "SEND_F"sv,
      "OVERLAP_F_B"sv, "UNSHARD"sv,  "0F0"sv,  "1B0,"sv, "-"sv,    "\0"sv, "\x80"sv,
      "\xff\xfe"sv,    "\xc3\xa4"sv, "0"sv,    "7"sv,    "x"sv,    "\\"sv, "(0F0;1B0)"sv};
  if (random.one_in(8)) {
    return std::string(9 + random.below(30), static_cast<char>('0' + random.below(10)));
  }
  if (random.one_in(4)) {
    return {static_cast<char>(random.below(256))};
  }
  return std::string(kTexts[random.below(kTexts.size())]);
}

void mutate(std::string& text, const std::string& other, Random& random) {
  const std::size_t at = random.below(text.size() + 1);
  const std::size_t length = random.below(std::min<std::size_t>(text.size() - at, 12) + 1);
  switch (random.below(6)) {
    case 0:
      text.insert(at, random_bytes(random));
      break;
    case 1:
      text.erase(at, 1 + length);
      break;
    case 2:
      if (at < text.size()) {
        text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      }
      break;
    case 3:
      text.insert(at, other.substr(random.below(other.size()), random.below(30)));
      break;
    case 4:
      text.resize(at);
      break;
    default:
      text.replace(at, length, random_bytes(random));
  }
}

std::string quoted(std::string_view text) {
  return testing::PrintToString(std::string(text));
}

// The line and column are a place in the text, or right after its end.
void expect_place(const ParseError& error, std::string_view text) {
  std::size_t start = 0;
  for (std::size_t line = 1; line < error.line(); ++line) {
    const std::size_t end = text.find('\n', start);
    ASSERT_NE(end, std::string_view::npos) << error.what() << " in " << quoted(text);
    start = end + 1;
  }
  const std::size_t length = std::min(text.find('\n', start), text.size()) - start;
  EXPECT_GE(error.line(), 1U);
  EXPECT_GE(error.column(), 1U) << error.what() << " in " << quoted(text);
  EXPECT_LE(error.column(), length + 1) << error.what() << " in " << quoted(text);
}

template <typename Parse>
std::optional<Schedule> try_parse(const Parse& parse, std::string_view text) {
  try {
    return parse(text);
  } catch (const ParseError& error) {
    expect_place(error, text);
  } catch (const ArgumentError&) {
  }
  return std::nullopt;
}

TEST(FuzzText, PrintedSchedulesAreRead) {
  for (uint64_t seed = 0; seed < 15'000; ++seed) {
    Random random(seed);
    const std::vector<ActionList> lists = random_lists(random);
    const Schedule schedule(infer_level(lists), infer_placement(lists), lists);
    ASSERT_EQ(parse_csv(to_csv(schedule)), schedule) << "seed " << seed << '\n' << to_csv(schedule);
    ASSERT_EQ(parse_json(to_json(schedule)), schedule) << "seed " << seed << '\n'
                                                       << to_json(schedule);
    for (const ActionList& list : lists) {
      if (list != ActionList{Action()}) {
        ASSERT_EQ(parse_actions(to_string(SlotRange(list))), list) << "seed " << seed;
      }
    }
  }
}

TEST(FuzzText, LevelAndPlacementSurviveInJson) {
  for (uint64_t seed = 0; seed < 2'000; ++seed) {
    Random random(seed);
    const std::vector<ActionList> lists = random_lists(random);
    const auto ranks = static_cast<int32_t>(lists.size());
    std::vector<std::optional<Rank>> rank_of(1 + random.below(9));
    for (std::optional<Rank>& rank : rank_of) {
      if (!random.one_in(5)) {
        rank = Rank(random.between(0, ranks - 1));
      }
    }
    const Schedule schedule(random.one_in(2) ? Level::kCompute : Level::kLowered,
                            Placement::of(rank_of, ranks), lists);
    ASSERT_EQ(parse_json(to_json(schedule)), schedule) << to_json(schedule);
  }
}

// Whatever is read prints as something that reads the same, and can be judged.
TEST(FuzzText, ChangedCsvIsReadOrRefused) {
  constexpr uint64_t kInputs = 200'000;
  uint64_t read = 0;
  std::string valid;
  std::string other;
  for (uint64_t seed = 0; seed < kInputs; ++seed) {
    Random random(seed);
    if (seed % 20 == 0) {
      other = valid.empty() ? "0F0" : valid;
      valid = random_csv(random);
    }
    std::string text = valid;
    for (std::size_t changes = 1 + random.below(3); changes > 0; --changes) {
      mutate(text, other, random);
    }
    if (const std::optional<Schedule> schedule = try_parse(parse_csv, text)) {
      const std::string printed = to_csv(*schedule);
      ASSERT_EQ(parse_csv(printed), *schedule) << "seed " << seed << ' ' << quoted(text);
      const Verdict verdict = verify(*schedule, {.mode = infer_mode(*schedule)});
      ASSERT_EQ(verdict.ok(), verdict.findings.empty()) << "seed " << seed << ' ' << quoted(text);
      ++read;
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ' ' << quoted(text);
  }
  EXPECT_GE(read * 10, kInputs);
  EXPECT_GE((kInputs - read) * 10, kInputs);
}

TEST(FuzzText, ChangedJsonIsReadOrRefused) {
  constexpr uint64_t kInputs = 30'000;
  uint64_t read = 0;
  for (uint64_t seed = 0; seed < kInputs; ++seed) {
    Random random(seed);
    std::string text = to_json(parse_csv(random_csv(random)));
    const std::string other = text;
    for (std::size_t changes = 1 + random.below(2); changes > 0; --changes) {
      mutate(text, other, random);
    }
    if (const std::optional<Schedule> schedule = try_parse(parse_json, text)) {
      ASSERT_EQ(parse_json(to_json(*schedule)), *schedule)
          << "seed " << seed << ' ' << quoted(text);
      for (const VerifyMode mode :
           {VerifyMode::kTraining, VerifyMode::kForwardOnly, VerifyMode::kPartial}) {
        if (schedule->num_stages() > 0) verify(*schedule, {.mode = mode});
      }
      ++read;
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ' ' << quoted(text);
  }
  EXPECT_GE(read * 100, kInputs);
  EXPECT_GE((kInputs - read) * 10, kInputs);
}

// A valid text with a different value for one member.
std::string with_member(std::string_view member, std::string_view value) {
  static constexpr std::array<std::array<std::string_view, 2>, 7> kGood = {
      {{"stagecraft", "1"},
       {"level", "\"compute\""},
       {"ranks", "1"},
       {"stages", "1"},
       {"microbatches", "1"},
       {"placement", "[0]"},
       {"actions", "[[\"0F0\"]]"}}};
  std::string text = "{";
  for (const auto& [name, good] : kGood) {
    text += (text.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": ";
    text += name == member ? value : good;
  }
  return text + "}";
}

TEST(FuzzText, JsonThatFitsNothingIsRefused) {
  EXPECT_EQ(to_csv(parse_json(with_member("", ""))), "0F0\n");
  const std::string deep = std::string(200'000, '[') + "1" + std::string(200'000, ']');
  const std::string objects = std::string(20'000, ' ') + "{\"a\": {\"b\": {}}}";
  for (const std::string_view member :
       {"stagecraft", "level", "ranks", "stages", "microbatches", "placement", "actions"}) {
    for (const std::string_view value : std::vector<std::string_view>{deep,
                                                                      objects,
                                                                      "1e999",
                                                                      "-1",
                                                                      "1.5",
                                                                      "99999999999999999999",
                                                                      "null",
                                                                      "true",
                                                                      "\"\"",
                                                                      "\"\\u0000\"",
                                                                      "[]",
                                                                      "{}",
                                                                      "[[[]]]",
                                                                      "[1e999]",
                                                                      "[-1]",
                                                                      "[9999999999]",
                                                                      "[[\"0F0,0B0\"]]",
                                                                      "[[\" \"]]",
                                                                      "[[\"0F0x\"]]",
                                                                      "[[0]]"}) {
      EXPECT_EQ(try_parse(parse_json, with_member(member, value)), std::nullopt)
          << member << ": " << value.substr(0, 100);
    }
  }
}

// The largest numbers that an action can have make no table of their size.
TEST(FuzzText, LargeNumbersAreJudged) {
  for (const std::string_view text : {"0F2147483646,0B2147483646", "1000000F0", "0F0\n300000B7",
                                      "1000000F2147483646,1000000SEND_B2147483646"}) {
    const Schedule schedule = parse_csv(text);
    EXPECT_EQ(to_csv(schedule), std::string(text) + '\n');
    EXPECT_FALSE(verify(schedule).ok()) << text;
  }
}

struct Strict {
  std::string_view text;
  std::size_t column;  // of the first byte that does not belong there
};

constexpr Strict kStrict[] = {
    {"2F0x", 4},
    {"1F", 3},
    {"1UNSHARD3", 9},
    {"()OVERLAP_F_B", 2},
    {"(0F0)OVERLAP_F_B", 1},
    {"1I0;2F0", 4},
    {"0OVERLAP_F_B", 2},
    {"(0F0;(1B0;2B0)OVERLAP_F_B)OVERLAP_F_B", 6},
    {"-1F0", 1},
    {"1f0", 2},
    {"1 F0", 2},
    {"99999999999F0", 1},
    {"1048576F0", 1},
    {"0F2147483647", 3},
    {"1SEND_B", 8},
    {"1SEND0", 2},
    {"F0", 1},
    {"3", 2},
    {"01F0", 1},
    {"0F00", 3},
    {"(0F0;1B0)", 10},
    {"(0F0;1B0", 9},
    {"(0F0;1B0)F0", 10},
    {"(0F0;1SEND_F0)OVERLAP_F_B", 6},
    {"(0F0;1B0)OVERLAP_F_B0", 21},
    {"OVERLAP_F_B", 1},
    {"\"0F0\"", 2},
    {"0F0\r", 4},
    {"0F0 1F0", 5},
    {"0F0;", 4},
    {"\xc3\xa4", 1},
    {"0F\xff", 3},
};

TEST(FuzzText, StrictCasesNameTheirPlace) {
  struct Before {
    std::string_view text;
    std::size_t line;
    std::size_t columns;
  };
  constexpr Before kBefore[] = {
      {"", 1, 0}, {"0F0,", 1, 4}, {"0F0,1F0\n", 2, 0}, {"0F0,1F0\r\n0B0,,", 2, 5}};
  for (const Strict& strict : kStrict) {
    for (const Before& before : kBefore) {
      const std::string text = std::string(before.text) + std::string(strict.text);
      try {
        parse_csv(text);
        ADD_FAILURE() << "no error for " << quoted(text);
      } catch (const ParseError& error) {
        EXPECT_EQ(error.line(), before.line) << quoted(text) << ": " << error.what();
        EXPECT_EQ(error.column(), strict.column + before.columns)
            << quoted(text) << ": " << error.what();
      }
    }
  }
}

TEST(FuzzText, StrictActionsNameTheirColumn) {
  for (const std::string_view text : {"2F0x", "1F", "1UNSHARD3", "1I0;2F0", "-1F0", "1f0", "1 F0",
                                      "99999999999F0", "0OVERLAP_F_B", " 1F0", "1F0 "}) {
    EXPECT_THROW(parse_action(text), ParseError) << text;
  }
  EXPECT_ERROR(parse_action("2F0x"), ParseError, "line 1, column 4: ");
}

TEST(FuzzText, ATextWithoutLinesIsRefused) {
  EXPECT_THROW(parse_csv(""), ArgumentError);
  EXPECT_EQ(parse_csv("\n").num_ranks(), 1);
  EXPECT_EQ(parse_csv("\n\r\n").num_ranks(), 2);
}

}  // namespace
}  // namespace stagecraft
