#include <cstddef>

#include "stagecraft/base/assert.h"
#include "stagecraft/viz/page.h"

namespace stagecraft::viz {

std::string fill_page(std::string_view page, const std::map<std::string_view, std::string>& texts) {
  std::string filled;
  for (std::size_t open = page.find("{{"); open != std::string_view::npos; open = page.find("{{")) {
    const std::size_t close = page.find("}}", open);
    SC_ASSERT(close != std::string_view::npos);
    const auto text = texts.find(page.substr(open + 2, close - open - 2));
    SC_ASSERT(text != texts.end());
    filled += page.substr(0, open);
    filled += text->second;
    page.remove_prefix(close + 2);
  }
  filled += page;
  return filled;
}

std::string join(std::span<const std::string_view> texts) {
  std::string all;
  for (const std::string_view text : texts) all += text;
  return all;
}

}  // namespace stagecraft::viz
