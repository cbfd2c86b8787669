#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"
#include "stagecraft/transport/world/launcher.h"

namespace stagecraft::detail {

/// A transport between processes, as World finds it. A new one is a folder of its own and a row of
/// the table in back_ends.cpp; CONTRIBUTING.md names the build files that list it.
struct BackEnd {
  const char* name;
  /// Its ranks join at c10d's store, so rank, number of ranks and the store's address must be known
  /// before (find_store).
  bool uses_store;
  /// Joins the world. Fills in `options.device` if it chooses one.
  std::unique_ptr<Transport> (*join)(JoinOptions& options);
};

/// Null for "local", which is no back end: its ranks share a process. REQUIRES a name that
/// choose_transport returns.
const BackEnd* find_back_end(const std::string& name);

/// The valid names of a transport: "auto", "local" and the names of the table.
std::vector<std::string> transport_words();

/// The transport that `asked` names: "local" and the names of the table name themselves, "auto"
/// names what the launcher suggests. ArgumentError for any other word.
std::string choose_transport(const std::string& asked, const std::optional<Launch>& launch);

}  // namespace stagecraft::detail
