#include "stagecraft/graph/archive.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/empty_strided.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/dense.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "stagecraft archive 1";

std::string tensor_record(std::size_t number) {
  return fmt::format("tensors/{}", number);
}

uint64_t checksum(const void* data, std::size_t size) {
  return detail::checksum({static_cast<const std::byte*>(data), size});
}

/// The text with its checksum before it. `unsealed` is the inverse, and returns nothing if text and
/// checksum do not match.
std::string sealed(const std::string& text) {
  return fmt::format("{:016x}\n{}", checksum(text.data(), text.size()), text);
}

std::optional<std::string> unsealed(const std::string& record) {
  constexpr std::size_t kHead = 17;  // 16 hexadecimal digits and a line break
  if (record.size() < kHead) return std::nullopt;
  std::string text = record.substr(kHead);
  // Covers the whole record, so a text that was cut off is found, too.
  if (sealed(text) != record) return std::nullopt;
  return text;
}

void check_savable(const Graph& graph) {
  check_states_apart(graph.parts());
  for (const Argument& input : graph.parts().inputs) {
    const c10::IValue* fixed = input.fixed_value();
    require<ArgumentError>(
        fixed == nullptr || !(fixed->isCapsule() || fixed->isGenerator()),
        "an input of the graph is fixed to an object, which cannot be saved in a file");
  }
  for (const GraphNode& node : graph.parts().nodes) {
    for (const Argument& argument : node.arguments) {
      const c10::IValue* fixed = argument.fixed_value();
      require<ArgumentError>(
          fixed == nullptr || !fixed->isGenerator(),
          "{} draws from a generator of its own, which cannot be saved in a file", node.name);
    }
  }
}

}  // namespace

// Writing -----------------------------------------------------------------------------------------

struct ArchiveWriter::Impl {
  std::string path;
  std::string unfinished;
  std::optional<caffe2::serialize::PyTorchStreamWriter> out;
  // A tensor that several graphs share is written once, and is one tensor again when it is read.
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers;
  std::vector<at::Tensor> kept;
  json tensors = json::array();

  template <typename F>
  void guarded(F&& write) {
    try {
      write();
    } catch (const std::exception&) {
      throw FileError(
          fmt::format("{}: it cannot be written: {}", path, describe(std::current_exception())));
    }
  }
};

ArchiveWriter::ArchiveWriter(std::string path) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  // A crash leaves no incomplete file under the final name, and no damage to an older file of that
  // name.
  impl_->unfinished = impl_->path + ".unfinished";
  impl_->guarded([&] { impl_->out.emplace(impl_->unfinished); });
  add_text("format", kFormat);
}

ArchiveWriter::~ArchiveWriter() {
  if (!impl_->out) return;
  try {
    if (!impl_->out->finalized()) impl_->out->writeEndOfFile();
  } catch (const std::exception&) {
    // The incomplete file is removed in any case.
  }
  impl_->out.reset();
  std::error_code ignored;
  std::filesystem::remove(impl_->unfinished, ignored);
}

void ArchiveWriter::add_text(const std::string& name, const std::string& text) {
  const std::string record = sealed(text);
  impl_->guarded([&] { impl_->out->writeRecord(name, record.data(), record.size()); });
}

std::size_t ArchiveWriter::add_tensor(const at::Tensor& tensor) {
  const auto [found, is_new] =
      impl_->numbers.try_emplace(tensor.unsafeGetTensorImpl(), impl_->numbers.size());
  const std::size_t number = found->second;
  if (!is_new) return number;
  require<ArgumentError>(tensor.layout() == at::kStrided,
                         "only strided tensors can be saved in a file, got {}", describe(tensor));
  // Kept, because `numbers` knows tensors by address: a new tensor must not get the address of a
  // released one.
  impl_->kept.push_back(tensor);
  // A dense tensor is written in the order of its memory, any other tensor row by row.
  // The bytes must be those of the elements: conjugation and negation may only be marked in a
  // tensor.
  at::Tensor data = tensor.detach().cpu().resolve_conj().resolve_neg();
  if (!data.is_non_overlapping_and_dense()) data = data.contiguous();
  impl_->tensors.push_back({{"dtype", dtype_name(data.scalar_type())},
                            {"sizes", data.sizes().vec()},
                            {"strides", data.strides().vec()},
                            {"requires_grad", tensor.requires_grad()},
                            {"checksum", checksum(data.const_data_ptr(), data.nbytes())}});
  impl_->guarded([&] {
    impl_->out->writeRecord(tensor_record(number), data.const_data_ptr(), data.nbytes());
  });
  return number;
}

void ArchiveWriter::add_graph(const std::string& name, const Graph& graph) {
  check_savable(graph);
  json states = json::object();
  for (const GraphState& state : graph.parts().states) {
    states[graph.value(state.value).name] = add_tensor(state.tensor);
  }
  add_text(name + "/graph", to_text(graph));
  add_text(name + "/states", json_to_text(states));
}

void ArchiveWriter::finish() {
  add_text("tensors/index", json_to_text(impl_->tensors));
  impl_->guarded([&] {
    impl_->out->writeEndOfFile();
    // Closed before it is renamed: the new name must stand for complete bytes.
    impl_->out.reset();
    std::filesystem::rename(impl_->unfinished, impl_->path);
  });
}

// Reading -----------------------------------------------------------------------------------------

struct ArchiveReader::Impl {
  std::string path;
  std::optional<caffe2::serialize::PyTorchStreamReader> in;
  json index;
  std::vector<at::Tensor> tensors;
};

void ArchiveReader::fail(const std::string& message) const {
  throw FileError(fmt::format("{}: {}", impl_->path, message));
}

namespace {

class MemoryAdapter final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MemoryAdapter(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t size() const override { return bytes_.size(); }
  std::size_t read(uint64_t pos, void* buf, std::size_t n, const char* /*what*/) const override {
    if (pos >= bytes_.size()) return 0;
    const std::size_t count = std::min(n, bytes_.size() - static_cast<std::size_t>(pos));
    std::memcpy(buf, bytes_.data() + pos, count);
    return count;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

ArchiveReader::ArchiveReader(std::string path) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  if (!std::filesystem::exists(impl_->path)) fail("there is no such file");
  try {
    impl_->in.emplace(impl_->path);
  } catch (const std::exception&) {
    fail("it is damaged or not an archive");
  }
  read_index();
}

ArchiveReader::ArchiveReader(std::string name, std::span<const std::byte> bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(name);
  try {
    impl_->in.emplace(std::make_shared<MemoryAdapter>(bytes));
  } catch (const std::exception&) {
    fail("it is damaged or not an archive");
  }
  read_index();
}

void ArchiveReader::read_index() {
  if (!has("format")) fail("it is an archive, but was not written by Stagecraft");
  const std::string format = text("format");
  if (format != kFormat) fail(fmt::format("expected '{}', got '{}'", kFormat, format));
  impl_->index = try_json_from_text(text("tensors/index"));
  if (!impl_->index.is_array()) fail("its list of tensors is damaged");
  impl_->tensors.resize(impl_->index.size());
}

ArchiveReader::~ArchiveReader() = default;

bool ArchiveReader::has(const std::string& name) const {
  return impl_->in->hasRecord(name);
}

std::string ArchiveReader::text(const std::string& name) {
  std::optional<std::string> text;
  try {
    const auto [data, size] = impl_->in->getRecord(name);
    text = unsealed({static_cast<const char*>(data.get()), size});
  } catch (const std::exception&) {
    fail(fmt::format("{} is missing or damaged", name));
  }
  if (!text) fail(fmt::format("{} is damaged", name));
  return *text;
}

at::Tensor ArchiveReader::tensor(std::size_t number) {
  if (number >= impl_->tensors.size()) fail(fmt::format("there is no tensor {}", number));
  at::Tensor& tensor = impl_->tensors[number];
  if (tensor.defined()) return tensor;
  const std::string record = tensor_record(number);
  try {
    const json& entry = impl_->index[number];
    const auto dtype = find_dtype(entry.at("dtype").get<std::string>());
    const auto sizes = entry.at("sizes").get<std::vector<int64_t>>();
    const auto strides = entry.at("strides").get<std::vector<int64_t>>();
    if (!dtype) fail(record + " has an unknown dtype");
    // Allocate nothing before the size of the record is checked.
    int64_t bytes = static_cast<int64_t>(c10::elementSize(*dtype));
    for (const int64_t size : sizes) {
      if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
        fail(record + " has invalid sizes");
    }
    if (static_cast<int64_t>(impl_->in->getRecordSize(record)) != bytes) {
      fail(fmt::format("{} has {} bytes, expected {}", record, impl_->in->getRecordSize(record),
                       bytes));
    }
    if (!detail::is_dense(sizes, strides)) fail(record + " has invalid strides");
    at::Tensor read = at::empty_strided(sizes, strides, at::TensorOptions().dtype(*dtype));
    impl_->in->getRecord(record, read.mutable_data_ptr(), read.nbytes());
    if (checksum(read.const_data_ptr(), read.nbytes()) != entry.at("checksum").get<uint64_t>()) {
      fail(record + " is damaged");
    }
    tensor = read.requires_grad_(entry.at("requires_grad").get<bool>());
  } catch (const FileError&) {
    throw;
  } catch (const std::exception&) {
    fail(record + " is missing or damaged");
  }
  return tensor;
}

Graph ArchiveReader::graph(const std::string& name) {
  const std::string source = text(name + "/graph");
  const json states = try_json_from_text(text(name + "/states"));
  if (!states.is_object()) fail(name + "/states is damaged");
  try {
    return parse_graph(source, [&](const std::string& state) {
      const auto found = states.find(state);
      if (found == states.end() || !found->is_number_unsigned()) {
        fail(fmt::format("{} has no tensor for %{}", name, state));
      }
      return tensor(found->get<std::size_t>());
    });
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", name, error.what()));
  }
}

void save_graph(const Graph& graph, const std::string& path) {
  ArchiveWriter out(path);
  out.add_graph("model", graph);
  out.finish();
}

Graph load_graph(const std::string& path) {
  ArchiveReader in(path);
  return in.graph("model");
}

}  // namespace stagecraft
