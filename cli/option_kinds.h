#pragma once

// Functions for the options of all our programs. Only sources that define options include it: CLI11
// takes seconds to compile.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/failure.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft::cli {

/// Gives a program its version, the form of its help, and the text below the options.
void set_up_help(CLI::App& app, std::string_view footer);

/// Parses a command line, without the program's name. Returns a text if help or the version was
/// asked for, otherwise nothing. BadUsage for a wrong command line.
std::optional<std::string> parse_words(CLI::App& app, const std::vector<std::string>& words);

/// BadUsage, which names the option, unless the text is a number in the range.
int64_t parse_count(const std::string& option, const std::string& text, int64_t least,
                    int64_t most);
double parse_number(const std::string& option, const std::string& text, double least, double most);

/// The largest number that an option for parts of a schedule (ranks, stages, microbatches, ...)
/// takes.
extern const int32_t kMostCount;

/// Adds an option for a whole number of at least `least`. An int32_t must be assignable to the
/// target.
template <typename Target>
CLI::Option* add_count(CLI::App* app, const std::string& name, Target& target, int32_t least,
                       const std::string& letter, const std::string& what) {
  return app
      ->add_option_function<std::string>(
          name,
          [name, least, &target](const std::string& text) {
            target = static_cast<int32_t>(parse_count(name, text, least, kMostCount));
          },
          what)
      ->type_name(letter);
}

/// Adds an option for any number from `least` to `most`.
template <typename Target>
CLI::Option* add_number(CLI::App* app, const std::string& name, Target& target, double least,
                        double most, const std::string& letter, const std::string& what) {
  return app
      ->add_option_function<std::string>(
          name,
          [name, least, most, &target](const std::string& text) {
            target = parse_number(name, text, least, most);
          },
          what)
      ->type_name(letter);
}

template <typename Target>
CLI::Option* add_text(CLI::App* app, const std::string& name, Target& target,
                      const std::string& type, const std::string& what) {
  return app
      ->add_option_function<std::string>(
          name, [&target](const std::string& text) { target = text; }, what)
      ->type_name(type);
}

template <typename Target>
CLI::Option* add_choice(CLI::App* app, const std::string& name, Target& target,
                        const std::vector<std::string>& words, const std::string& what) {
  return app
      ->add_option_function<std::string>(
          name,
          [name, words, &target](const std::string& text) {
            if (std::find(words.begin(), words.end(), text) == words.end()) {
              throw BadUsage(fmt::format("{} is {}, got {}", name, CLI::detail::join(words, " or "),
                                         quote(text)));
            }
            target = text;
          },
          what)
      ->type_name(CLI::detail::join(words, "|"));
}

}  // namespace stagecraft::cli
