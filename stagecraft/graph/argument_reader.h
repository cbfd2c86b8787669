#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/jit_type.h>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The part of the parser of graphs that reads values, their types, and arguments. Throws
/// ParseError.
class ArgumentReader {
 protected:
  ArgumentReader(TextCursor in, int depth) : in_(in), depth_(depth) {}

  /// Limits the depth of nested lists and branches to that of trees.
  class Depth {
   public:
    explicit Depth(ArgumentReader& reader);
    ~Depth() { --reader_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    ArgumentReader& reader_;
  };

  void skip_blanks() { in_.read_all_of(" \t"); }
  /// Throws ParseError if there is no name. `what` says in the message what was expected: "the name
  /// of a value".
  std::string read_name(std::string_view what);

  /// Reads the name after '%'. Throws ParseError if no value with that name was made before.
  ValueId read_known_value();
  ValueId read_new_value();
  ValueId make_value(std::string name, const TextCursor& start);
  void read_type(ValueId id);
  c10::ScalarType read_dtype();
  static c10::Device read_device(const std::string& name, const TextCursor& start);

  /// Reads an argument of an operator whose schema has `type` in that place.
  Argument read_argument(const c10::TypePtr& type);

  TextCursor in_;
  int depth_ = 0;
  GraphParts parts_;
  std::vector<std::string> size_names_;
  std::unordered_map<std::string, ValueId> by_name_;

 private:
  bool accept_word(std::string_view word);
  Argument read_number();
  double read_double();
  Argument read_list(const c10::TypePtr& type);
};

}  // namespace stagecraft
