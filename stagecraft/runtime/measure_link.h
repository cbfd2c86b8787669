#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/sim/cost_model.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Measures the cost of a transfer between neighbouring ranks. Values of each of these sizes, in
/// bytes, are sent both ways between every two neighbours, one pair after the other. Latency is in
/// milliseconds, bandwidth in bytes a millisecond, both the median over the pairs. There is no
/// bandwidth if more bytes do not take longer. In a world of one rank, transfers are free.
///
/// Called by all ranks of the world, which get the same result. Throws as Transport does.
LinkCost measure_link(Transport& transport, std::vector<int64_t> sizes, Deadline deadline);

/// The same between ranks that are threads of one process.
LinkCost measure_local_link(int32_t ranks, const std::vector<int64_t>& sizes);

/// Latency and bandwidth from the time of a transfer (`times`) for each size. REQUIRES as many
/// times as sizes, at least one.
LinkCost fit_link(const std::vector<int64_t>& sizes, const std::vector<double>& times);

}  // namespace stagecraft
