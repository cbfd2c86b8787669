#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace stagecraft::exported {

/// A value in an untrusted JSON text, with its path. Every access is checked, and errors name the
/// path: `graph.nodes[3].inputs: expected a list, got a number`. A field must not outlive the field
/// that it was taken from.
class JsonField {
 public:
  using Json = nlohmann::json;

  JsonField(const Json& value, std::string_view what) : value_(value), key_(what) {}

  const Json& value() const { return value_; }

  bool has(std::string_view key) const;
  /// A null counts as an absent field.
  bool is_null() const { return value_.is_null(); }
  JsonField at(std::string_view key) const;
  JsonField at(std::size_t index) const;

  /// The number of elements of a list or an object.
  std::size_t size() const { return value_.size(); }
  void for_each(const std::function<void(const JsonField&)>& fn) const;
  void for_each_member(
      const std::function<void(const std::string& key, const JsonField&)>& fn) const;

  std::string text() const;
  int64_t integer() const;
  bool boolean() const;
  /// Also accepts the texts "NaN", "Infinity" and "-Infinity".
  double number() const;
  /// The only member of an object, which is the form of a union.
  std::string only_key() const;

  /// FileError without the name of the file; the reader of the file adds it.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  JsonField(const Json& value, const JsonField* parent, std::string_view key, std::size_t index)
      : value_(value), parent_(parent), key_(key), index_(index) {}
  std::string path() const;
  void expect(bool holds, std::string_view what) const;

  const Json& value_;
  const JsonField* parent_ = nullptr;
  std::string_view key_;
  std::size_t index_ = kNone;
};

}  // namespace stagecraft::exported
