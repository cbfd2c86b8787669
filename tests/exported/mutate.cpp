#include "tests/exported/mutate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

namespace stagecraft {

namespace {

using Json = nlohmann::json;
using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t count) {
  return count == 0 ? 0 : random() % count;
}

void mutate_bytes(std::string& bytes, Random& random) {
  const std::size_t at = below(random, bytes.size());
  const std::size_t length = 1 + below(random, random() % 4 == 0 ? 4096 : 16);
  const std::string chunk = bytes.substr(at, length);
  switch (random() % 6) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      break;
    case 1:
      bytes.erase(at, length);
      break;
    case 2:
      bytes.insert(at, chunk);
      break;
    case 3:
      bytes.insert(below(random, bytes.size() + 1), chunk);
      break;
    case 4:
      bytes.resize(random() % 2 == 0 ? at : bytes.size() - std::min(bytes.size(), length));
      break;
    default:
      for (std::size_t i = at; i < std::min(bytes.size(), at + length % 8 + 1); ++i) {
        bytes[i] = static_cast<char>(random() % 2 == 0 ? random() : 0xff);
      }
  }
}

/// A value, and what it is in.
struct Place {
  Json* parent;
  Json* value;
  std::string key;
  std::size_t index;
};

void collect(Json& value, std::vector<Place>& places) {
  if (value.is_object()) {
    for (auto it = value.begin(); it != value.end(); ++it) {
      places.push_back({&value, &*it, it.key(), 0});
      collect(*it, places);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      places.push_back({&value, &value[i], {}, i});
      collect(value[i], places);
    }
  }
}

Json any_value(Random& random) {
  constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();
  const Json kinds[] = {nullptr,
                        true,
                        0,
                        1,
                        -1,
                        2,
                        63,
                        int64_t{1} << 31,
                        int64_t{1} << 62,
                        kGreatest,
                        -kGreatest - 1,
                        std::numeric_limits<uint64_t>::max(),
                        1.5,
                        1e300,
                        "",
                        "x",
                        "NaN",
                        std::string("a\0b", 3),
                        Json::array(),
                        Json::object(),
                        Json::array({1, "a", nullptr}),
                        {{"as_int", kGreatest}},
                        {{"as_none", true}},
                        {{"as_name", "x"}}};
  return kinds[below(random, std::size(kinds))];
}

void mutate_text(std::string& text, const std::vector<Place>& places, Random& random) {
  if (random() % 3 == 0) {
    mutate_bytes(text, random);
    text.resize(std::min<std::size_t>(text.size(), 100000));
    return;
  }
  // Something that has a name elsewhere.
  for (int i = 0; i < 100; ++i) {
    const Json& other = *places[below(random, places.size())].value;
    if (other.is_string()) {
      text = other.get<std::string>();
      return;
    }
  }
}

void mutate_json(Json& top, Random& random) {
  std::vector<Place> places;
  collect(top, places);
  if (places.empty()) return;
  const Place place = places[below(random, places.size())];
  Json& value = *place.value;
  switch (random() % 7) {
    case 0:
      if (place.parent->is_object()) {
        place.parent->erase(place.key);
      } else {
        place.parent->erase(place.index);
      }
      return;
    case 1:
      value = any_value(random);
      return;
    case 2: {
      // A copy, since one may be inside the other.
      Json other = *places[below(random, places.size())].value;
      value = std::move(other);
      return;
    }
    case 3: {
      Json& list = place.parent->is_array() ? *place.parent : value;
      if (!list.is_array() || list.empty()) return;
      Json copy = list[below(random, list.size())];
      const auto at = static_cast<std::ptrdiff_t>(below(random, list.size() + 1));
      list.insert(list.begin() + at, std::move(copy));
      return;
    }
    case 4: {
      Json& list = place.parent->is_array() ? *place.parent : value;
      if (!list.is_array() || list.empty()) return;
      std::swap(list[below(random, list.size())], list[below(random, list.size())]);
      return;
    }
    default:
      if (value.is_string()) {
        mutate_text(value.get_ref<std::string&>(), places, random);
      } else if (value.is_number_integer()) {
        const Json number = any_value(random);
        value = number.is_number_integer() ? number : Json(value.get<int64_t>() ^ 1);
      } else if (value.is_boolean()) {
        value = !value.get<bool>();
      } else {
        mutate_json(value, random);
      }
  }
}

}  // namespace

std::string mutate(const std::vector<ZipMember>& archive, Random& random) {
  const std::size_t kind = random() % 8;
  const std::size_t times = 1 + below(random, random() % 2 == 0 ? 1 : 4);
  if (kind == 0) {
    std::string bytes = zip_bytes(archive);
    for (std::size_t i = 0; i < times; ++i) mutate_bytes(bytes, random);
    return bytes;
  }
  std::vector<ZipMember> members = archive;
  for (ZipMember& member : members) {
    if (kind == 1) {
      if (random() % members.size() == 0) mutate_bytes(member.bytes, random);
      if (random() % 64 == 0) mutate_bytes(member.name, random);
      member.is_aligned = random() % 4 != 0;
      continue;
    }
    if (!member.name.ends_with(".json")) continue;
    if (!member.name.ends_with("model.json") && random() % 4 != 0) continue;
    Json text = Json::parse(member.bytes);
    for (std::size_t i = 0; i < times; ++i) mutate_json(text, random);
    member.bytes = text.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (kind == 2) mutate_bytes(member.bytes, random);
  }
  return zip_bytes(members);
}

std::vector<ZipMember> read_zip(const std::string& bytes) {
  auto read = [&](std::size_t at, std::size_t width) {
    std::size_t value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      value |= std::size_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
    }
    return value;
  };
  std::vector<ZipMember> members;
  for (const std::size_t entry : find_places(bytes).entries) {
    const std::size_t local = read(entry + 42, 4);
    const std::size_t begin = local + 30 + read(local + 26, 2) + read(local + 28, 2);
    members.push_back(
        {bytes.substr(entry + 46, read(entry + 28, 2)), bytes.substr(begin, read(entry + 24, 4))});
  }
  return members;
}

}  // namespace stagecraft
