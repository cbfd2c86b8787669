#include "tests/conformance/transport_suite.h"
#include "tests/support/mpi_ranks.h"

namespace stagecraft {
namespace {

TransportBackend mpi_backend(const std::string& name, const ProcessTransportOptions& options) {
  TransportBackend backend;
  backend.name = name;
  backend.run = [options](int32_t ranks, const TransportBackend::Body& body) {
    MpiRanks::run(ranks, options, body);
  };
  backend.run_owning = [options](int32_t ranks, const TransportBackend::OwningBody& body) {
    MpiRanks::run_owning(ranks, options, body);
  };
  backend.has_ranks = [](int32_t ranks) { return ranks <= MpiRanks::job_size(); };
  return backend;
}

ProcessTransportOptions with_checksums() {
  ProcessTransportOptions options;
  options.use_checksums = true;
  return options;
}

SC_JOIN_TRANSPORT_SUITE(Mpi, mpi_backend("default", {}),
                        mpi_backend("checksums", with_checksums()));

}  // namespace
}  // namespace stagecraft
