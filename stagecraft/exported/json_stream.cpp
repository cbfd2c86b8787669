#include "stagecraft/exported/json_stream.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/error.h"

namespace stagecraft::exported {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxNesting = 1000;

/// Receives the events of the parser. (The parser's own callback for dropping elements takes
/// quadratic time: it visits all elements that were kept before.)
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& what, const std::vector<JsonStream>& streams)
      : what_(what), streams_(streams) {}

  Json& result() { return top_; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override {
    check_text(value);
    return add(std::move(value));
  }
  bool binary(binary_t& /*value*/) override { return false; }

  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    check_text(value);
    Frame& frame = frames_.back();
    if (frame.stream == nullptr && frame.value->contains(value)) {
      throw FileError(fmt::format("{}: the key '{}' appears twice in an object", what_, value));
    }
    frame.key = std::move(value);
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const Json::exception& error) override {
    throw FileError(fmt::format("{} is not JSON: {}", what_, error.what()));
  }

 private:
  // Refuses zero bytes. Texts become names and parts of messages, which would end at a zero byte.
  void check_text(const std::string& text) const {
    if (text.find('\0') == std::string::npos) return;
    throw FileError(fmt::format("{}: a text has a zero byte in it", what_));
  }

  /// A list or an object that is being read.
  struct Frame {
    Json* value = nullptr;
    std::string key = {};                // the key of the member that is being read
    const JsonStream* stream = nullptr;  // takes the elements; streams do not nest
  };

  bool add(Json value) {
    Json& added = place(std::move(value));
    if (!frames_.empty() && frames_.back().stream != nullptr) {
      frames_.back().stream->take(frames_.back().key, added);
    }
    return true;
  }

  bool open(Json empty) {
    if (frames_.size() >= kMaxNesting) {
      throw FileError(fmt::format("{}: nested deeper than {}", what_, kMaxNesting));
    }
    const JsonStream* stream = find_stream();
    Json& added = place(std::move(empty));
    frames_.push_back({.value = &added, .stream = stream});
    return true;
  }

  bool close() {
    frames_.pop_back();
    if (!frames_.empty() && frames_.back().stream != nullptr) {
      Frame& frame = frames_.back();
      frame.stream->take(frame.key, element_);
    }
    return true;
  }

  /// Puts a value into the list or object that is being read.
  Json& place(Json value) {
    if (frames_.empty()) return top_ = std::move(value);
    Frame& frame = frames_.back();
    if (frame.stream != nullptr) return element_ = std::move(value);
    if (frame.value->is_object()) return (*frame.value)[frame.key] = std::move(value);
    frame.value->push_back(std::move(value));
    return frame.value->back();
  }

  const JsonStream* find_stream() const {
    for (const JsonStream& stream : streams_) {
      if (stream.place.size() != frames_.size()) continue;
      bool is_here = true;
      for (std::size_t i = 0; is_here && i < frames_.size(); ++i) {
        is_here = frames_[i].key == stream.place[i] && frames_[i].stream == nullptr;
      }
      if (is_here) return &stream;
    }
    return nullptr;
  }

  const std::string& what_;
  const std::vector<JsonStream>& streams_;
  Json top_;
  Json element_;  // the element that a stream takes next
  std::vector<Frame> frames_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& what,
                const std::vector<JsonStream>& streams) {
  Builder builder(what, streams);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.result());
}

}  // namespace stagecraft::exported
