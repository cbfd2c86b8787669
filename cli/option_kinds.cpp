#include "cli/option_kinds.h"

#include <charconv>
#include <cmath>
#include <memory>
#include <sstream>

#include "stagecraft/base/version.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft::cli {
namespace {

// Help without CLI11's remarks on options that require and exclude each other. The usage line names
// required options.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = "\nUsage: " + name;
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_required()) continue;
      text += ' ' + option->get_name(option->get_positional());
      if (!option->get_positional()) text += ' ' + option->get_type_name();
    }
    text += " [OPTIONS]";
    if (!app->get_subcommands({}).empty()) text += " SUBCOMMAND ...";
    return text + '\n';
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional() || option->get_type_name().empty()) return {};
    return ' ' + option->get_type_name();
  }
};

// CLI11 puts two empty lines between groups; this leaves one.
std::string single_spaced(std::string text) {
  for (std::size_t at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n")) {
    text.erase(at, 1);
  }
  return text;
}

// The message for arguments that do not belong to an option.
std::string describe_extras(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  const auto option = std::find_if(extras.begin(), extras.end(), [](const std::string& extra) {
    return extra.size() > 1 && extra.front() == '-';
  });
  if (option != extras.end()) return fmt::format("there is no option {}", *option);
  if (!app.get_subcommands().empty() || app.get_subcommands({}).empty())
    return fmt::format("{} is one argument too many", quote(extras.front()));
  return fmt::format("there is no subcommand {}", quote(extras.front()));
}

}  // namespace

const int32_t kMostCount = Action::kMaxMicrobatch;

int64_t parse_count(const std::string& option, const std::string& text, int64_t least,
                    int64_t most) {
  int64_t value = -1;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    throw BadUsage(fmt::format("{} takes a whole number from {} to {}, got {}", option, least, most,
                               quote(text)));
  }
  return value;
}

double parse_number(const std::string& option, const std::string& text, double least, double most) {
  double value = std::nan("");
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= least) || !(value <= most)) {
    throw BadUsage(
        fmt::format("{} takes a number from {} to {}, got {}", option, least, most, quote(text)));
  }
  return value;
}

void set_up_help(CLI::App& app, std::string_view footer) {
  app.set_version_flag("--version", "stagecraft " + std::string(version()));
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(32);
  app.footer(std::string(footer));
}

std::optional<std::string> parse_words(CLI::App& app, const std::vector<std::string>& words) {
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Success& asked) {
    std::ostringstream out;
    app.exit(asked, out, out);
    return single_spaced(out.str());
  } catch (const CLI::ExtrasError&) {
    throw BadUsage(describe_extras(app));
  } catch (const CLI::ParseError& error) {
    throw BadUsage(error.what());
  }
  return std::nullopt;
}

}  // namespace stagecraft::cli
