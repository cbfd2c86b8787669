#include "stagecraft/stage/ports.h"

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(Ports, AreAChainByDefault) {
  const Ports ports(3);
  EXPECT_TRUE(ports.is_edge(StageId(0), StageId(1)));
  EXPECT_FALSE(ports.is_edge(StageId(0), StageId(2)));
  EXPECT_FALSE(Ports::without_chain(3).is_edge(StageId(0), StageId(1)));
}

TEST(Ports, ConnectAddsAnEdgeAndTakesTheOutputOffTheChain) {
  Ports ports(3);
  ports.connect({StageId(0), 1}, {StageId(2), 1});
  EXPECT_TRUE(ports.is_edge(StageId(0), StageId(2)));
  EXPECT_TRUE(ports.is_connected({StageId(0), 1}));
  EXPECT_FALSE(ports.is_connected({StageId(0), 0}));
}

TEST(Ports, RefuseWhatCannotBe) {
  EXPECT_THROW(Ports(0), ArgumentError);
  Ports ports(3);
  ports.connect({StageId(0), 1}, {StageId(2), 1});
  EXPECT_THROW(ports.connect({StageId(1), 0}, {StageId(2), 1}), ArgumentError);  // taken
  EXPECT_THROW(ports.feed(0, {StageId(2), 1}), ArgumentError);
  EXPECT_THROW(ports.connect({StageId(1), 0}, {StageId(1), 0}), ArgumentError);
  EXPECT_THROW(ports.connect({StageId(2), 0}, {StageId(1), 0}), ArgumentError);
  EXPECT_THROW(ports.connect({StageId(0), 0}, {StageId(3), 0}), ArgumentError);
  EXPECT_THROW(ports.connect({StageId(0), -1}, {StageId(1), 0}), ArgumentError);
  EXPECT_THROW(ports.feed("", {StageId(1), 0}), ArgumentError);
  EXPECT_THROW(ports.feed(-1, {StageId(1), 0}), ArgumentError);
  EXPECT_NO_THROW(ports.feed("mask", {StageId(2), 0, "mask"}));
  EXPECT_NO_THROW(ports.feed("mask", {StageId(1), 0, "mask"}));
}

}  // namespace
}  // namespace stagecraft
