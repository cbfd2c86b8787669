#include "stagecraft/exported/json_field.h"

#include <limits>

#include <fmt/format.h>

#include "stagecraft/base/error.h"

namespace stagecraft::exported {

std::string JsonField::path() const {
  if (parent_ == nullptr) return std::string(key_);
  if (index_ != kNone) return fmt::format("{}[{}]", parent_->path(), index_);
  return fmt::format("{}.{}", parent_->path(), key_);
}

void JsonField::fail(const std::string& message) const {
  throw FileError(fmt::format("{}: {}", path(), message));
}

void JsonField::expect(bool holds, std::string_view what) const {
  if (!holds) fail(fmt::format("expected {}, got {}", what, value_.type_name()));
}

bool JsonField::has(std::string_view key) const {
  const auto found = value_.is_object() ? value_.find(key) : value_.end();
  return value_.is_object() && found != value_.end() && !found->is_null();
}

JsonField JsonField::at(std::string_view key) const {
  expect(value_.is_object(), "an object");
  const auto found = value_.find(key);
  if (found == value_.end()) fail(fmt::format("expected a member '{}', got none", key));
  // The path refers to the key in the parsed object, which lives as long as the value.
  return {*found, this, found.key(), kNone};
}

JsonField JsonField::at(std::size_t index) const {
  expect(value_.is_array(), "a list");
  if (index >= value_.size()) {
    fail(fmt::format("expected at least {} elements, got {}", index + 1, value_.size()));
  }
  return {value_[index], this, {}, index};
}

void JsonField::for_each(const std::function<void(const JsonField&)>& fn) const {
  expect(value_.is_array(), "a list");
  for (std::size_t i = 0; i < value_.size(); ++i) fn(at(i));
}

void JsonField::for_each_member(
    const std::function<void(const std::string& key, const JsonField&)>& fn) const {
  expect(value_.is_object(), "an object");
  for (auto it = value_.begin(); it != value_.end(); ++it) {
    fn(it.key(), JsonField(*it, this, it.key(), kNone));
  }
}

std::string JsonField::text() const {
  expect(value_.is_string(), "a text");
  return value_.get<std::string>();
}

int64_t JsonField::integer() const {
  const bool is_large = value_.is_number_unsigned() &&
                        value_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  expect(value_.is_number_integer() && !is_large, "a whole number");
  return value_.get<int64_t>();
}

bool JsonField::boolean() const {
  expect(value_.is_boolean(), "true or false");
  return value_.get<bool>();
}

double JsonField::number() const {
  if (value_.is_string()) {
    const auto& text = value_.get_ref<const std::string&>();
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  expect(value_.is_number(), "a number");
  return value_.get<double>();
}

std::string JsonField::only_key() const {
  expect(value_.is_object(), "an object");
  if (value_.size() != 1) fail(fmt::format("expected one member, got {}", value_.size()));
  return value_.begin().key();
}

}  // namespace stagecraft::exported
