#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/exported/exported_archive.h"
#include "tests/exported/bounded_child.h"
#include "tests/exported/small_archive.h"

namespace stagecraft {
namespace {

std::size_t num_nodes() {
  const char* wanted = std::getenv("SC_MANY_NODES");
  return wanted == nullptr ? 20000 : std::strtoull(wanted, nullptr, 10);
}

/// A chain of `count` relus.
std::string chain(std::size_t count) {
  SmallArchive archive = SmallArchive::linear();
  const std::string meta = archive.tensors()["x"].dump();
  std::string nodes;
  std::string tensors;
  std::string before = "add";
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("relu_{}", i);
    nodes += "," + node("torch.ops.aten.relu.default", {{"self", tensor_name(before)}},
                        {tensor_name(name)})
                       .dump();
    tensors += fmt::format(",\"{}\":{}", name, meta);
    before = name;
  }
  archive.graph()["outputs"][0] = tensor_name(before);
  archive.signature()["output_specs"][0]["user_output"]["arg"] = tensor_name(before);
  archive.nodes().push_back("MORE NODES");
  archive.tensors()["MORE TENSORS"] = 0;
  std::string text = archive.model.dump();
  auto put_in = [&](const std::string& mark, const std::string& more) {
    text.replace(text.find(mark), mark.size(), more);
  };
  put_in(",\"MORE NODES\"", nodes);
  put_in("\"MORE TENSORS\":0,", tensors.substr(1) + ",");
  std::vector<ZipMember> members = archive.members();
  for (ZipMember& member : members) {
    if (member.name.ends_with("model.json")) member.bytes = text;
  }
  return zip_bytes(members);
}

// Memory grows with the number of nodes, and with nothing else; time too.
TEST(ManyNodes, LoadInBoundedMemory) {
  const std::size_t count = num_nodes();
  const std::string bytes = chain(count);
  const TempFile file(bytes);
  const std::size_t size = bytes.size();
  const ChildResult nothing = run_bounded(SIZE_MAX / 2, 60, [](ChildNotes&) {});
  const ChildResult result = run_bounded(SIZE_MAX / 2, 300, [&](ChildNotes&) {
    const auto begin = std::chrono::steady_clock::now();
    const Graph graph = load_exported(file.path());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << fmt::format("{} nodes, {} MiB of file: loaded in {:.2f} s\n",
                             graph.parts().nodes.size(), size >> 20, took.count());
    if (graph.parts().nodes.size() != count + 3) throw Error("nodes are missing");
  });
  EXPECT_TRUE(result.is_done) << result.what;
  const std::size_t memory = result.peak_memory - std::min(result.peak_memory, nothing.peak_memory);
  std::cout << fmt::format("{} MiB at most, {} bytes a node\n", memory >> 20, memory / count);
  const std::size_t most = (std::size_t{64} << 20) + count * 5000;
  EXPECT_LT(memory, kIsSanitized ? 4 * most : most);  // a sanitizer has a shadow of all memory
}

}  // namespace
}  // namespace stagecraft
