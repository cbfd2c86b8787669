#include "stagecraft/transport/wire/value_codec.h"

#include <new>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/wire/type_codec.h"

namespace stagecraft::detail {
namespace {

// As for all trees. A list that contains itself, or damaged bytes, would otherwise overflow the
// stack.
constexpr int kMaxDepth = 256;

// One letter for each kind of value. The two classes below write and read what follows it, in the
// same order.
enum class Mark : char {
  kNone = 'N',
  kInt = 'I',
  kDouble = 'D',
  kBool = 'B',
  kText = 'S',
  kComplex = 'C',
  kTensor = 'T',
  kInts = 'i',
  kDoubles = 'd',
  kTuple = '(',
  kList = '[',
  kDict = '{',
};

// Writes the structure and the numbers apart. Values that differ only in numbers and texts then
// have equal layouts, which are sent once. Lengths of lists of numbers count as numbers.
class Encoder {
 public:
  explicit Encoder(std::optional<c10::Device> link) : link_(link) {}

  EncodedValue encode(const c10::IValue& value) {
    add(value, 0);
    EncodedValue encoded;
    ByteWriter layout;
    layout.put(num_tensors_);
    layout.put_raw(tensors_.bytes().data(), tensors_.bytes().size());
    layout.put_raw(structure_.bytes().data(), structure_.bytes().size());
    // The tensors come first: the receiver must allocate them before it can build the value.
    encoded.layout = layout.take();
    encoded.values = values_.take();
    encoded.tensors = std::move(bytes_);
    encoded.by_link = std::move(by_link_);
    return encoded;
  }

 private:
  void add(const c10::IValue& value, int depth) {
    require<ArgumentError>(depth <= kMaxDepth, "a sent value is nested deeper than {} levels",
                           kMaxDepth);
    if (value.isTensor()) {
      structure_.put(Mark::kTensor);
      add_tensor(value.toTensor());
    } else if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      structure_.put(Mark::kTuple);
      structure_.put(static_cast<uint32_t>(elements.size()));
      for (const auto& element : elements) add(element, depth + 1);
    } else if (value.isIntList()) {
      // Before isList, which is true for these lists, too: element by element each number would
      // need a mark in the layout, and lists of different lengths different layouts.
      structure_.put(Mark::kInts);
      put_all(value.toIntVector());
    } else if (value.isDoubleList()) {
      structure_.put(Mark::kDoubles);
      put_all(value.toDoubleVector());
    } else if (value.isList()) {
      const auto list = value.toListRef();
      structure_.put(Mark::kList);
      // The type cannot be found from the elements: the list may be empty, or of optional tensors.
      write_type(structure_, value.toList().elementType());
      structure_.put(static_cast<uint32_t>(list.size()));
      for (const auto& element : list) add(element, depth + 1);
    } else if (value.isGenericDict()) {
      add_dict(value.toGenericDict(), depth);
    } else {
      add_leaf(value);
    }
  }

  void add_leaf(const c10::IValue& value) {
    if (value.isNone()) {
      structure_.put(Mark::kNone);
    } else if (value.isInt()) {
      structure_.put(Mark::kInt);
      values_.put(value.toInt());
    } else if (value.isDouble()) {
      structure_.put(Mark::kDouble);
      values_.put(value.toDouble());
    } else if (value.isBool()) {
      structure_.put(Mark::kBool);
      values_.put(static_cast<uint8_t>(value.toBool()));
    } else if (value.isString()) {
      structure_.put(Mark::kText);
      values_.put_text(value.toStringRef());
    } else if (value.isComplexDouble()) {
      structure_.put(Mark::kComplex);
      values_.put(value.toComplexDouble().real());
      values_.put(value.toComplexDouble().imag());
    } else {
      throw ArgumentError(
          fmt::format("a {} cannot be sent to a different process", value.tagKind()));
    }
  }

  void add_tensor(const at::Tensor& tensor) {
    auto layout = TensorLayout::of(tensor);
    auto bytes = bytes_of(layout, tensor);
    // The receiver must know the way before the tensor arrives: receives of a link are posted by
    // frame.
    layout.by_link = bytes.defined() && link_ == bytes.device();
    layout.write(tensors_);
    ++num_tensors_;
    if (!bytes.defined()) return;
    bytes_.push_back(std::move(bytes));
    by_link_.push_back(layout.by_link);
  }

  void add_dict(const c10::Dict<c10::IValue, c10::IValue>& dict, int depth) {
    structure_.put(Mark::kDict);
    write_type(structure_, dict.valueType());
    structure_.put(static_cast<uint32_t>(dict.size()));
    for (const auto& entry : dict) {
      require<ArgumentError>(entry.key().isString(), "a sent dict has a key of type {}",
                             entry.key().tagKind());
      structure_.put_text(entry.key().toStringRef());
      add(entry.value(), depth + 1);
    }
  }

  template <typename T>
  void put_all(const std::vector<T>& numbers) {
    values_.put(static_cast<uint32_t>(numbers.size()));
    values_.put_raw(numbers.data(), numbers.size() * sizeof(T));
  }

  const std::optional<c10::Device> link_;
  ByteWriter structure_;
  ByteWriter values_;
  ByteWriter tensors_;
  uint32_t num_tensors_ = 0;
  std::vector<at::Tensor> bytes_;
  std::vector<bool> by_link_;
};

class Decoder {
 public:
  Decoder(std::string_view structure, std::string_view values, ArrivingTensors tensors)
      : structure_(structure), values_(values), tensors_(std::move(tensors)) {}

  c10::IValue decode() {
    auto value = next(0);
    require<MetadataError>(
        structure_.left() == 0 && values_.left() == 0 && next_tensor_ == tensors_.size(),
        "a message has more bytes than its value");
    return value;
  }

 private:
  c10::IValue next(int depth) {
    require<MetadataError>(depth <= kMaxDepth, "a message is nested deeper than {} levels",
                           kMaxDepth);
    switch (structure_.get<Mark>()) {
      case Mark::kNone:
        return {};
      case Mark::kInt:
        return values_.get<int64_t>();
      case Mark::kDouble:
        return values_.get<double>();
      case Mark::kBool:
        return values_.get<uint8_t>() != 0;
      case Mark::kText:
        return std::string(values_.get_text());
      case Mark::kComplex: {
        const auto real = values_.get<double>();
        return c10::complex<double>(real, values_.get<double>());
      }
      case Mark::kTensor:
        require<MetadataError>(next_tensor_ < tensors_.size(), "a message lacks a tensor");
        return tensors_[next_tensor_++].finish();
      case Mark::kInts:
        return numbers<int64_t>();
      case Mark::kDoubles:
        return numbers<double>();
      case Mark::kTuple: {
        std::vector<c10::IValue> elements(structure_.get_count());
        for (auto& element : elements) element = next(depth + 1);
        return c10::ivalue::Tuple::create(std::move(elements));
      }
      case Mark::kList: {
        c10::impl::GenericList list(read_type(structure_));
        const auto size = structure_.get_count();
        list.reserve(size);
        for (std::size_t i = 0; i < size; ++i) list.push_back(next(depth + 1));
        return list;
      }
      case Mark::kDict: {
        c10::impl::GenericDict dict(c10::StringType::get(), read_type(structure_));
        const auto size = structure_.get_count();
        for (std::size_t i = 0; i < size; ++i) {
          std::string key(structure_.get_text());
          dict.insert(std::move(key), next(depth + 1));
        }
        return dict;
      }
    }
    throw MetadataError("a message has a value of unknown kind");
  }

  template <typename T>
  c10::IValue numbers() {
    const auto count = values_.get<uint32_t>();
    const auto raw = values_.take(count * sizeof(T));
    std::vector<T> list(count);
    if (count > 0) std::memcpy(list.data(), raw.data(), raw.size());
    return list;
  }

  ByteReader structure_;
  ByteReader values_;
  ArrivingTensors tensors_;
  std::size_t next_tensor_ = 0;
};

// torch has a type for a lack of memory on devices, but none for one on the CPU.
bool lacks_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator: ") !=
             std::string_view::npos;
}

// Translates torch's errors: invalid bytes (MetadataError) or no memory (OutOfMemory).
template <typename Problem, typename Function>
auto in_our_words(const Function& function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    // Both errors are reported differently: an invalid message is the peer's failure, a lack of
    // memory is this rank's (Inbox::read_frame).
    const std::string message =
        std::string("a message cannot be read: ") + error.what_without_backtrace();
    if (lacks_memory(error)) throw OutOfMemory(message, /*lacks_memory=*/true);
    throw Problem(message);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("out of memory for a message", /*lacks_memory=*/true);
  }
}

}  // namespace

EncodedValue encode(const c10::IValue& value, std::optional<c10::Device> link) {
  return Encoder(link).encode(value);
}

ValueLayout::ValueLayout(std::string_view bytes) {
  in_our_words<MetadataError>([&] {
    ByteReader in(bytes);
    const std::size_t count = in.get_count();
    WayPlan plan;
    for (std::size_t i = 0; i < count; ++i) {
      tensors_.push_back(TensorLayout::read(in));
      const std::size_t size = tensors_.back().num_bytes();
      // The sender has no bytes for a tensor without elements (Encoder::add_tensor). A part for it
      // would shift all later parts.
      if (size == 0) continue;
      parts_.push_back({i, size, plan.next(size, tensors_.back().by_link)});
      uses_link_ = uses_link_ || parts_.back().way == Way::kLink;
    }
    structure_ = std::string(in.take(in.left()));
  });
}

ArrivingTensors ValueLayout::allocate(std::optional<c10::Device> home) const {
  return in_our_words<OutOfMemory>([&] {
    ArrivingTensors arriving;
    arriving.reserve(tensors_.size());
    for (const auto& layout : tensors_) arriving.emplace_back(layout, home);
    return arriving;
  });
}

void ValueLayout::allocate_for_link(ArrivingTensors& tensors) const {
  in_our_words<OutOfMemory>([&] {
    for (const auto& part : parts_) {
      if (part.way == Way::kLink) tensors[part.tensor].allocate_for_link();
    }
  });
}

c10::IValue ValueLayout::build(std::string_view values, ArrivingTensors tensors) const {
  return in_our_words<OutOfMemory>(
      [&] { return Decoder(structure_, values, std::move(tensors)).decode(); });
}

}  // namespace stagecraft::detail
