#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft::detail {

/// What a rank brings to a meeting.
struct Participant {
  uint64_t attempt = 0;  ///< of that rank; which of its answers this will be
  std::string call;      ///< what it is in: "barrier"
  std::string bytes;
};

/// Where all ranks meet, again and again; kept by one of them, told by messages. A rank that
/// withdraws before all are there has never come.
class Meetings {
 public:
  explicit Meetings(int32_t ranks) : came_(static_cast<std::size_t>(ranks)) {}

  /// What each rank brought, if this one was the last; then the next meeting begins.
  std::optional<std::vector<Participant>> come(Rank rank, Participant participant);
  /// Who is missing besides it; nothing if it is not there with that attempt, so that the meeting
  /// has taken place.
  std::optional<std::vector<Rank>> withdraw(Rank rank, uint64_t attempt);
  /// Nobody has come.
  void clear();

 private:
  std::vector<std::optional<Participant>> came_;
};

}  // namespace stagecraft::detail
