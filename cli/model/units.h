#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::cli {

/// 124439808 as "124,439,808".
std::string grouped(int64_t count);
/// A count in a narrow column: "9,984", "12.3 K", "124.4 M", "1.5 T".
std::string short_count(int64_t count);
/// "512 B", "12.0 KiB", "474.7 MiB".
std::string short_bytes(int64_t bytes);
/// "1.20 MFLOP".
std::string short_flops(int64_t flops);
/// A share of a whole in percent: "12.5 %"; "-" if the whole is 0.
std::string percent_of(int64_t part, int64_t whole);

/// A text from a file as one line of at most `most` characters. Characters that cannot be printed
/// are escaped. The middle of a long text is left out.
std::string shown(std::string_view text, std::size_t most = 80);

/// Words as lines that begin with `indent` spaces and are at most about 100 characters long.
std::string wrapped(const std::vector<std::string>& words, std::size_t indent);

}  // namespace stagecraft::cli
