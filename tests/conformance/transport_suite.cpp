#include "tests/conformance/transport_suite.h"

#include <utility>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"

namespace stagecraft {

void TransportSuite::send(Transport& transport, Rank to, const TransferId& id, c10::IValue value) {
  transport.wait_send(transport.post_send(to, id, std::move(value)), soon());
}

c10::IValue TransportSuite::receive(Transport& transport, Rank from, const TransferId& id) {
  return transport.wait_receive(transport.post_receive(from, id), soon()).value;
}

void expect_aborted(const std::function<void()>& call, Rank peer, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "did not throw, but the world was aborted: " << text;
  } catch (const PeerError& error) {
    EXPECT_EQ(error.peer(), peer);
    EXPECT_THAT(error.what(), testing::HasSubstr(text));
  }
}

}  // namespace stagecraft
