#include "stagecraft/train/state_file.h"

#include <cstddef>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft::detail {

namespace {

std::span<const std::byte> bytes_of(const void* data, std::size_t size) {
  return {static_cast<const std::byte*>(data), size};
}

/// The tensor on the CPU, with a storage that contains nothing else.
at::Tensor compact_copy(const at::Tensor& tensor) {
  at::Tensor data = tensor.detach().cpu();
  if (data.storage().nbytes() != data.nbytes()) data = data.clone();
  return data;
}

c10::IValue dict_of(const NamedTensors& tensors) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  for (const auto& [name, tensor] : tensors) dict.insert(name, compact_copy(tensor));
  return dict;
}

c10::IValue dict_of(const StateSections& sections) {
  c10::impl::GenericDict value(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [section, tensors] : sections) value.insert(section, dict_of(tensors));
  return value;
}

NamedTensors named_tensors(const c10::IValue& dict) {
  require<Error>(dict.isGenericDict(), "expected a dict, got {}", describe(dict));
  NamedTensors tensors;
  for (const auto& entry : dict.toGenericDict()) {
    require<Error>(entry.key().isString() && entry.value().isTensor(),
                   "expected names and tensors, got {}: {}", describe(entry.key()),
                   describe(entry.value()));
    tensors.emplace_back(entry.key().toStringRef(), entry.value().toTensor());
  }
  return tensors;
}

void write_archive(DurableFile& file, const c10::IValue& value) {
  std::string text;
  // The pickle has no tags of types, because only TorchScript understands them.
  torch::jit::Pickler pickler([&](const char* data, std::size_t size) { text.append(data, size); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  // The archive writer must not be interrupted by an exception. After a failure it drops the bytes,
  // and the failure is thrown at the end.
  std::exception_ptr failure;
  caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, std::size_t size) {
    try {
      if (failure == nullptr) file.write(bytes_of(data, size));
    } catch (...) {
      failure = std::current_exception();
    }
    return size;
  });
  for (std::size_t i = 0; i < pickler.tensorData().size(); ++i) {
    const at::Tensor& tensor = pickler.tensorData()[i];
    archive.writeRecord(fmt::format("data/{}", i), tensor.storage().data(),
                        tensor.storage().nbytes());
  }
  archive.writeRecord("data.pkl", text.data(), text.size());
  archive.writeEndOfFile();
  if (failure != nullptr) std::rethrow_exception(failure);
}

template <typename T>
FileSeal write_file(const std::string& path, const T& content) {
  DurableFile file(path);
  try {
    write_archive(file, dict_of(content));
  } catch (const FileError&) {
    throw;
  } catch (const std::exception&) {
    throw FileError(
        fmt::format("{}: cannot be written: {}", path, describe(std::current_exception())));
  }
  return file.close();
}

c10::IValue read_file(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  try {
    return torch::jit::readArchiveAndTensors("data", "", "", std::nullopt, std::nullopt,
                                             std::nullopt, reader);
  } catch (const std::exception&) {
    // torch's reader reads an OrderedDict as None.
    const std::string message = describe(std::current_exception());
    if (message.find("Expected GenericDict but got None") == std::string::npos) throw;
    throw Error("it is an OrderedDict, as state_dict() returns it; save dict(...) of it instead");
  }
}

[[noreturn]] void fail_to_load(const std::string& path, const std::exception_ptr& error) {
  throw FileError(fmt::format("{}: not a file of named tensors: {}", path, describe(error)));
}

}  // namespace

FileSeal write_state_file(const std::string& path, const StateSections& sections) {
  return write_file(path, sections);
}

FileSeal write_tensor_file(const std::string& path, const NamedTensors& tensors) {
  return write_file(path, tensors);
}

NamedTensors read_tensor_file(const std::string& path) {
  try {
    return named_tensors(read_file(path));
  } catch (const std::exception&) {
    fail_to_load(path, std::current_exception());
  }
}

StateSections read_state_file(const std::string& path) {
  try {
    StateSections sections;
    for (const auto& section : read_file(path).toGenericDict()) {
      sections[section.key().toStringRef()] = named_tensors(section.value());
    }
    return sections;
  } catch (const std::exception&) {
    fail_to_load(path, std::current_exception());
  }
}

}  // namespace stagecraft::detail
