#include "stagecraft/transport/wire/type_codec.h"

#include <utility>
#include <vector>

#include <ATen/core/jit_type.h>

namespace stagecraft::detail {
namespace {

// Damaged bytes could nest types without an end. Types of real values nest a few levels.
constexpr int kMaxTypeDepth = 64;

c10::TypePtr read_type(ByteReader& in, int depth) {
  if (depth > kMaxTypeDepth) throw MetadataError("a message has a type that is nested too deeply");
  switch (in.get<char>()) {
    case 'a':
      return c10::AnyType::get();
    case 't':
      return c10::TensorType::get();
    case 'i':
      return c10::IntType::get();
    case 'f':
      return c10::FloatType::get();
    case 'b':
      return c10::BoolType::get();
    case 's':
      return c10::StringType::get();
    case 'c':
      return c10::ComplexType::get();
    case 'n':
      return c10::NumberType::get();
    case 'o':
      return c10::NoneType::get();
    case '?':
      return c10::OptionalType::create(read_type(in, depth + 1));
    case 'l':
      return c10::ListType::create(read_type(in, depth + 1));
    case 'd': {
      auto key = read_type(in, depth + 1);
      return c10::DictType::create(std::move(key), read_type(in, depth + 1));
    }
    case '(': {
      // get_count bounds the allocation by the bytes that are left.
      std::vector<c10::TypePtr> elements(in.get_count());
      for (auto& element : elements) element = read_type(in, depth + 1);
      return c10::TupleType::create(std::move(elements));
    }
    default:
      throw MetadataError("a message has an unknown type");
  }
}

}  // namespace

void write_type(ByteWriter& out, const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return out.put('t');
    case c10::TypeKind::IntType:
      return out.put('i');
    case c10::TypeKind::FloatType:
      return out.put('f');
    case c10::TypeKind::BoolType:
      return out.put('b');
    case c10::TypeKind::StringType:
      return out.put('s');
    case c10::TypeKind::ComplexType:
      return out.put('c');
    case c10::TypeKind::NumberType:
      return out.put('n');
    case c10::TypeKind::NoneType:
      return out.put('o');
    case c10::TypeKind::OptionalType:
      out.put('?');
      return write_type(out, type->expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType:
      out.put('l');
      return write_type(out, type->expectRef<c10::ListType>().getElementType());
    case c10::TypeKind::DictType:
      out.put('d');
      write_type(out, type->expectRef<c10::DictType>().getKeyType());
      return write_type(out, type->expectRef<c10::DictType>().getValueType());
    case c10::TypeKind::TupleType: {
      const auto elements = type->expectRef<c10::TupleType>().elements();
      out.put('(');
      out.put(static_cast<uint32_t>(elements.size()));
      for (const auto& element : elements) write_type(out, element);
      return;
    }
    // Types of classes and the like exist in one process only. Their elements travel as Any;
    // elements that cannot be sent are refused one by one.
    default:
      return out.put('a');
  }
}

c10::TypePtr read_type(ByteReader& in) {
  return read_type(in, 0);
}

}  // namespace stagecraft::detail
