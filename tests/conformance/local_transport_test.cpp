#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "stagecraft/transport/local/local_world.h"
#include "tests/conformance/transport_suite.h"

namespace stagecraft {
namespace {

TransportBackend local_backend(const std::string& name, const LocalWorldOptions& options) {
  TransportBackend backend;
  backend.name = name;
  backend.buffered = !options.zero_buffering;
  backend.run = [options](int32_t ranks, const TransportBackend::Body& body) {
    LocalWorld(ranks, options).run(body);
  };
  backend.run_owning = [options](int32_t ranks, const TransportBackend::OwningBody& body) {
    LocalWorld world(ranks, options);
    std::vector<std::unique_ptr<Transport>> ends;
    for (Rank rank(0); rank.value() < ranks; ++rank) ends.push_back(world.release(rank));
    std::vector<std::thread> threads;
    for (auto& end : ends) {
      threads.emplace_back([&] {
        try {
          body(end);
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
  };
  return backend;
}

LocalWorldOptions spinning() {
  LocalWorldOptions options;
  options.spin = std::chrono::microseconds(20);
  return options;
}

LocalWorldOptions unbuffered() {
  LocalWorldOptions options;
  options.zero_buffering = true;
  return options;
}

SC_JOIN_TRANSPORT_SUITE(Local, local_backend("default", {}), local_backend("spinning", spinning()),
                        local_backend("unbuffered", unbuffered()));

}  // namespace
}  // namespace stagecraft
