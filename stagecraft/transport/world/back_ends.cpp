#include "stagecraft/transport/world/back_ends.h"

#include <algorithm>
#include <array>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/transport/gloo/join_gloo.h"
#include "stagecraft/transport/mpi/join_mpi.h"
#include "stagecraft/transport/nccl/connect_nccl.h"
#include "stagecraft/transport/nccl/join_nccl.h"

namespace stagecraft::detail {
namespace {

const std::array kBackEnds = {
    BackEnd{"gloo", /*uses_store=*/true, [](JoinOptions& options) { return join_gloo(options); }},
    BackEnd{"nccl", /*uses_store=*/true,
            [](JoinOptions& options) {
              options.device = choose_gpu(options);
              return join_nccl(options);
            }},
    BackEnd{"mpi", /*uses_store=*/false, [](JoinOptions& options) { return join_mpi(options); }},
};

}  // namespace

const BackEnd* find_back_end(const std::string& name) {
  const auto* const found = std::find_if(kBackEnds.begin(), kBackEnds.end(),
                                         [&](const BackEnd& row) { return row.name == name; });
  SC_ASSERT(found != kBackEnds.end() || name == "local");
  return found == kBackEnds.end() ? nullptr : found;
}

std::vector<std::string> transport_words() {
  std::vector<std::string> words = {"auto", "local"};
  for (const BackEnd& row : kBackEnds) words.emplace_back(row.name);
  return words;
}

std::string choose_transport(const std::string& asked, const std::optional<Launch>& launch) {
  if (asked == "auto") {
    if (!launch) return "local";
    const bool is_mpirun =
        launch->kind == Launch::Kind::kOpenMpi || launch->kind == Launch::Kind::kMpich;
    return is_mpirun ? "mpi" : "gloo";
  }
  std::vector<std::string> words = transport_words();
  if (std::find(words.begin(), words.end(), asked) != words.end()) return asked;
  const std::string last = words.back();
  words.pop_back();
  throw ArgumentError(fmt::format("expected {} or {} for a transport, got '{}'",
                                  fmt::join(words, ", "), last, asked));
}

}  // namespace stagecraft::detail
