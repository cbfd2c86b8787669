// An entry point for libFuzzer, over the reader of CSV and the verifier. Not part of the build:
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. -DFMT_HEADER_ONLY -o fuzz_csv
//     tests/schedule/fuzz_csv_main.cpp stagecraft/schedule/*.cpp
//     stagecraft/base/{error,text_cursor}.cpp
//   ./fuzz_csv -max_total_time=60 -max_len=512 tests/golden

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/verify.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer looks for.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace stagecraft;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Schedule schedule = parse_csv(text);
    if (parse_csv(to_csv(schedule)) != schedule) {
      std::abort();
    }
    // A stage number costs memory, and its size says nothing new.
    if (schedule.num_stages() < 100'000) {
      for (const VerifyMode mode :
           {VerifyMode::kTraining, VerifyMode::kForwardOnly, VerifyMode::kPartial}) {
        const Verdict verdict = verify(schedule, {.mode = mode});
        if (verdict.ok() != verdict.findings.empty()) {
          std::abort();
        }
        for (const Finding& finding : verdict.findings) {
          if (to_string(finding).empty()) {
            std::abort();
          }
        }
      }
    }
  } catch (const ParseError& error) {
    if (error.line() < 1 || error.column() < 1 || error.column() > size + 1) {
      std::abort();
    }
  } catch (const ArgumentError&) {
    if (size != 0) {
      std::abort();
    }
  }
  return 0;
}
