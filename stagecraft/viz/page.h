#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

namespace stagecraft::viz {

/// The files of page/, which the build embeds in a source. Templates have places such as {{title}},
/// which fill_page fills.
std::string_view page_template();      ///< title, style, timeline, data, script
std::string_view report_template();    ///< the same, and reportStyle and report
std::string_view sections_template();  ///< those of page_template, reportStyle and sections
std::string_view timeline_markup();    ///< tools, lanes and overview, which both pages have
std::string_view page_style();
std::string_view report_style();  ///< on top of page_style
/// The parts of one script, in order.
std::span<const std::string_view> page_scripts();
std::span<const std::string_view> report_scripts();  ///< loaded after page_scripts

/// The template with its places filled. REQUIRES a text for every place.
std::string fill_page(std::string_view page, const std::map<std::string_view, std::string>& texts);
std::string join(std::span<const std::string_view> texts);

}  // namespace stagecraft::viz
