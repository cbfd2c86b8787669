#pragma once

#include <string>
#include <string_view>

namespace stagecraft::viz {

/// `text` as the content of an XML or HTML element or of an attribute in double quotes. Characters
/// that XML forbids (control characters) and bytes that are not UTF-8 become U+FFFD.
std::string escape_xml(std::string_view text);

/// `text` as a JSON string, quotes included, that may also occur inside an HTML script element:
/// only ASCII, and no '<'. Bytes that are not UTF-8 become U+FFFD.
std::string quote_json(std::string_view text);

/// A number for people to read: whole numbers in full, others with about six digits.
std::string number_text(double value);
/// The shortest text that parses to the same number; valid in JSON.
std::string exact_text(double value);
/// "27.3 %".
std::string percent_text(double share);

/// The distance of ticks for an axis of `length` with about `count` of them: 1, 2 or 5 times a
/// power of ten. REQUIRES length > 0 and count > 0.
double tick_step(double length, double count);

}  // namespace stagecraft::viz
