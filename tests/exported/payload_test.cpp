#include "stagecraft/exported/payload.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "tests/exported/small_archive.h"
#include "tests/support/expect_error.h"

namespace stagecraft::exported {
namespace {

using Json = nlohmann::json;

/// Weights of [4, 4] and [4], and what a change makes of the first.
struct Weights {
  explicit Weights(const std::function<void(SmallArchive&, Json&)>& change, bool is_aligned = true)
      : file(bytes(change, is_aligned)), zip(file.path()), payload(zip, "model") {}

  static std::string bytes(const std::function<void(SmallArchive&, Json&)>& change,
                           bool is_aligned) {
    SmallArchive archive = SmallArchive::linear();
    change(archive, archive.weights["config"]["fc.weight"]);
    std::vector<ZipMember> members = archive.members();
    for (ZipMember& member : members) member.is_aligned = is_aligned;
    return zip_bytes(members);
  }

  TempFile file;
  ZipFile zip;
  FilePayload payload;
};

Json payload_field(int64_t value) {
  return {{"as_int", value}};
}

TEST(Payload, TensorsLieInTheFile) {
  const Weights weights([](SmallArchive&, Json&) {});
  const Payload::Found found = weights.payload.get("fc.weight");
  EXPECT_TRUE(at::equal(found.tensor, at::ones({4, 4})));
  EXPECT_TRUE(found.tensor.requires_grad());
  EXPECT_EQ(found.tensor.data_ptr(), weights.zip.member("data/weights/weight_0").data());
  EXPECT_EQ(found.piece, "data/weights/weight_0");
  EXPECT_ERROR(weights.payload.get("other"), FileError,
               weights.file.path() + ": it has no tensor for other");
}

TEST(Payload, TensorsOfOnePieceShareIt) {
  const Weights weights([](SmallArchive& archive, Json& meta) {
    meta["tensor_meta"]["sizes"][0] = payload_field(3);
    meta["tensor_meta"]["storage_offset"] = payload_field(4);
    archive.weights["config"]["fc.bias"]["path_name"] = "weight_0";
    archive.weights["config"]["fc.bias"]["tensor_meta"]["dtype"] = 8;  // double
    archive.weights["config"]["fc.bias"]["tensor_meta"]["storage_offset"] = payload_field(4);
  });
  const at::Tensor one = weights.payload.get("fc.weight").tensor;
  const at::Tensor other = weights.payload.get("fc.bias").tensor;
  EXPECT_TRUE(one.storage().is_alias_of(other.storage()));
  EXPECT_EQ(one.storage_offset(), 4);
  EXPECT_EQ(static_cast<char*>(one.data_ptr()) + 16, static_cast<char*>(other.data_ptr()));
}

TEST(Payload, ReadsWhatIsNotAligned) {
  const Weights weights([](SmallArchive&, Json&) {}, false);
  const at::Tensor tensor = weights.payload.get("fc.weight").tensor;
  EXPECT_TRUE(at::equal(tensor, at::ones({4, 4})));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16, 0U);
}

TEST(Payload, ReadsTensorsWithoutElements) {
  const Weights weights([](SmallArchive& archive, Json& meta) {
    meta["tensor_meta"]["sizes"][0] = payload_field(0);
    archive.files["data/weights/weight_0"] = "";
  });
  EXPECT_EQ(weights.payload.get("fc.weight").tensor.sizes(), (std::vector<int64_t>{0, 4}));
}

struct PayloadCase {
  std::function<void(SmallArchive&, Json&)> change;
  std::string message;
};

TEST(Payload, RefusesWhatDoesNotLieInItsPiece) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  const std::string too_large = "fc.weight: it has [";
  const std::vector<PayloadCase> cases = {
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["sizes"][0] = payload_field(5); },
       "fc.weight: it has [5, 4] elements of 4 bytes, which do not fit into the 64 bytes of "
       "data/weights/weight_0"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["strides"][0] = payload_field(5); },
       too_large},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["storage_offset"] = payload_field(1); },
       too_large},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["dtype"] = 8; }, "elements of 8 bytes"},
      {[](SmallArchive& a, Json&) { a.files["data/weights/weight_0"].resize(63); },
       "do not fit into the 63 bytes"},
      {[](SmallArchive& a, Json&) { a.files["data/weights/weight_0"] = ""; }, "the 0 bytes"},
      {[&](SmallArchive&, Json& m) { m["tensor_meta"]["sizes"][0] = payload_field(kHuge); },
       too_large},
      {[&](SmallArchive&, Json& m) { m["tensor_meta"]["strides"][0] = payload_field(kHuge); },
       too_large},
      {[&](SmallArchive&, Json& m) { m["tensor_meta"]["storage_offset"] = payload_field(kHuge); },
       too_large},
      // More elements than can be counted, in no memory at all.
      {[&](SmallArchive&, Json& m) {
         m["tensor_meta"]["sizes"] = {payload_field(kHuge), payload_field(kHuge)};
         m["tensor_meta"]["strides"] = {payload_field(0), payload_field(0)};
       },
       too_large},
      {[&](SmallArchive&, Json& m) {
         m["tensor_meta"]["sizes"][0] = payload_field(0);
         m["tensor_meta"]["storage_offset"] = payload_field(kHuge);
       },
       too_large},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["sizes"][0] = payload_field(-1); },
       "fc.weight: expected a whole number of 0 or more, got '-1'"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["strides"][1] = payload_field(-1); },
       "got '-1'"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["storage_offset"] = payload_field(-4); },
       "got '-4'"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["sizes"][0] = symbol("s0", 4); },
       "got 'Symbol('s0'"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["sizes"].push_back(payload_field(1)); },
       "fc.weight: it has 3 sizes and 2 strides"},
      {[](SmallArchive&, Json& m) { m["use_pickle"] = true; }, "only strided tensors"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"] = nullptr; }, "only strided tensors"},
      {[](SmallArchive&, Json& m) { m["tensor_meta"]["layout"] = 1; }, "only strided"},
      {[](SmallArchive&, Json& m) { m["path_name"] = "weight_9"; }, "has no data/weights/weight_9"},
      {[](SmallArchive&, Json& m) { m["path_name"] = "../../archive_format"; }, "has no data/"},
  };
  for (const PayloadCase& each : cases) {
    const Weights weights(each.change);
    EXPECT_ERROR(weights.payload.get("fc.weight"), FileError, each.message) << each.message;
    EXPECT_ERROR(weights.payload.get("fc.weight"), FileError, weights.file.path() + ": ");
  }
}

}  // namespace
}  // namespace stagecraft::exported
