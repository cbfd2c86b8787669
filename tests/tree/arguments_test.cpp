#include "stagecraft/tree/arguments.h"

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

TEST(Kwargs, KeepInsertionOrderAndReplaceInPlace) {
  Kwargs kwargs = {{"b", 1}, {"a", 2}};
  kwargs.set("c", 3);
  kwargs.set("b", 4);
  std::string order;
  for (const auto& [name, value] : kwargs) order += name + std::to_string(value.toInt());
  EXPECT_EQ(order, "b4a2c3");
  EXPECT_EQ(kwargs.get("a").toInt(), 2);
  EXPECT_EQ(kwargs.find("z"), nullptr);
}

TEST(Kwargs, MisuseNamesTheName) {
  EXPECT_ERROR((Kwargs{{"x", 1}, {"x", 2}}), ArgumentError, "the name \"x\" appears twice");
  const Kwargs kwargs = {{"ids", 1}, {"mask", 2}};
  EXPECT_ERROR(kwargs.get("msk"), ArgumentError, "kwargs has no \"msk\"; it has \"ids\", \"mask\"");
  EXPECT_ERROR(Kwargs().get("msk"), ArgumentError, "it has nothing");
}

}  // namespace
}  // namespace stagecraft
