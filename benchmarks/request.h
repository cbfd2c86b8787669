#pragma once

#include <chrono>
#include <iostream>
#include <string>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::bench {

/// The next request to a program that is one of several ranks: a line that rank 0 reads from its
/// standard input, on all ranks; "end" at the end of the input. All ranks call it. The program that
/// sends requests may be busy with its own measurements for minutes, so it waits for up to an hour.
inline std::string next_request(Transport& transport) {
  std::string line;
  if (transport.rank() == Rank(0) && !std::getline(std::cin, line)) line = "end";
  const auto deadline = Deadline::after(std::chrono::hours(1));
  return transport.broadcast(line, Rank(0), deadline).toStringRef();
}

}  // namespace stagecraft::bench
