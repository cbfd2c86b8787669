#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

namespace stagecraft::viz {

/// The files of page/, put into a source by the build. Templates have places such as {{title}},
/// each filled by fill_page.
std::string_view page_template();      ///< title, style, timeline, data, script
std::string_view report_template();    ///< the same, and reportStyle and report
std::string_view sections_template();  ///< those of page_template, reportStyle and sections
std::string_view timeline_markup();    ///< tools, lanes and overview, which both pages have
std::string_view page_style();
std::string_view report_style();  ///< on top of page_style
/// One after the other they are one script.
std::span<const std::string_view> page_scripts();
std::span<const std::string_view> report_scripts();  ///< loaded after page_scripts

/// The template with its places filled. REQUIRES a text for every place.
std::string fill_page(std::string_view page, const std::map<std::string_view, std::string>& texts);
std::string join(std::span<const std::string_view> texts);

}  // namespace stagecraft::viz
