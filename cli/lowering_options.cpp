#include "cli/lowering_options.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/option_kinds.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft::cli {

std::vector<CLI::Option*> add_pass_options(CLI::App* app, LowerOptions& options,
                                           std::optional<std::string>& lookahead) {
  return {
      add_count(
          app, "--max-active-stages", options.max_active_stages, 1, "N",
          fmt::format("unsharded stages at a time on a rank; default: {}", kDefaultActiveStages)),
      add_text(app, "--unshard-lookahead", lookahead, "full|auto|N,...",
               "stages to unshard ahead: all that may be, fewer on early ranks, or by rank"),
      app->add_flag_callback(
          "--defer-reduction-waits",
          [&options] { options.reduction_wait = ReductionWait::kDeferred; },
          "wait for a reduction before the next one, not at once"),
      add_count(app, "--limit-sends", options.max_sends, 1, "K",
                "outstanding sends of a rank; default: no limit"),
  };
}

const std::vector<std::string>& pass_option_names() {
  static const std::vector<std::string> names = {"--max-active-stages", "--unshard-lookahead",
                                                 "--defer-reduction-waits", "--limit-sends"};
  return names;
}

UnshardLookahead parse_lookahead(const std::string& text, int32_t ranks, int32_t max_active,
                                 bool is_measured) {
  if (text == "full" || (is_measured && text == kLeastLookahead)) return Lookahead::kFull;
  if (text == "auto") return Lookahead::kAuto;
  std::vector<int32_t> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    int32_t number = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, number);
    if (error != std::errc() || stop != text.data() + end) {
      throw BadUsage(
          fmt::format("--unshard-lookahead is full, auto{} or a number for each rank, got {}",
                      is_measured ? ", least" : "", quote(text)));
    }
    numbers.push_back(number);
    begin = end + 1;
  }
  try {
    return resolve_lookahead(numbers, ranks, max_active);
  } catch (const ArgumentError& error) {
    throw BadUsage(fmt::format("--unshard-lookahead: {}", error.what()));
  }
}

void check_target_options(LowerTarget target, const LowerOptions& options,
                          const std::optional<std::string>& lookahead) {
  if (target != LowerTarget::kTorch213) return;
  const std::string_view name = to_string(target);
  if (options.max_sends) {
    throw BadUsage(fmt::format("--limit-sends is not for {}, which has no waits", name));
  }
  if (options.reduction_wait) {
    throw BadUsage(fmt::format("--defer-reduction-waits is not for {}, which has no waits", name));
  }
  if (lookahead.value_or("full") != "full") {
    throw BadUsage(fmt::format(
        "--unshard-lookahead is not for {}, which unshards as many stages as may be active", name));
  }
}

}  // namespace stagecraft::cli
