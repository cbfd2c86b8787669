// A world over a group of c10d that the program has made itself.

#include "stagecraft/transport/c10d/gloo_group.h"

#include <csignal>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/c10d/process_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/processes.h"

namespace stagecraft {
namespace {

TEST(GlooGroup, OneThatIsHandedInCarriesAWorld) {
  const auto path =
      std::filesystem::temp_directory_path() / ("stagecraft_store_" + std::to_string(getpid()));
  Processes processes(2, [&](int32_t i) {
    std::signal(SIGPIPE, SIG_IGN);
    const auto store = c10::make_intrusive<c10d::FileStore>(path.string(), 2);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, i, 2);
    const auto backend =
        detail::make_gloo_group(store, Rank(i), 2, "127.0.0.1", std::chrono::seconds(20));
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    ProcessWorld world(group);
    EXPECT_EQ(world.rank(), Rank(i));
    EXPECT_EQ(world.num_ranks(), 2);
    const auto soon = Deadline::after(std::chrono::seconds(20));
    const TransferId id{0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(0)};
    const auto sent = world.transport().post_send(Rank(1 - i), id, at::full({100000}, i));
    const auto receive = world.transport().post_receive(Rank(1 - i), id);
    const auto got = world.transport().wait_receive(receive, soon).value.toTensor();
    EXPECT_TRUE(at::equal(got, at::full({100000}, 1 - i)));
    world.transport().wait_send(sent, soon);
    world.transport().barrier(soon);
  });
  for (const auto& end : processes.wait()) {
    EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
  }
  std::filesystem::remove(path);
}

class OtherBackend final : public c10d::Backend {
 public:
  OtherBackend() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "other"; }
};

TEST(GlooGroup, OneOfAnotherBackendIsRefused) {
  const auto path =
      std::filesystem::temp_directory_path() / ("stagecraft_other_" + std::to_string(getpid()));
  Processes processes(1, [&](int32_t) {
    const auto store = c10::make_intrusive<c10d::FileStore>(path.string(), 1);
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
    EXPECT_ERROR(ProcessWorld{group}, ArgumentError, "is gloo, this one's is none");
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<OtherBackend>());
    EXPECT_ERROR(ProcessWorld{group}, ArgumentError, "is gloo, this one's is other");
  });
  EXPECT_EQ(processes.wait()[0].kind, ProcessEnd::Kind::kReturned);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace stagecraft
