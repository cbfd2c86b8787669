#pragma once

#include <span>
#include <string_view>

namespace stagecraft::viz {

/// The files of page/, put into a source by the build. The template has the places {{title}},
/// {{style}}, {{data}} and {{script}}, each once.
std::string_view page_template();
std::string_view page_style();
/// One after the other they are one script.
std::span<const std::string_view> page_scripts();

}  // namespace stagecraft::viz
