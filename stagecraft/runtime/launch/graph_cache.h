#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {

/// The least recently used entries of a small map. Keys are compared with ==.
///
///   GraphCache<Key, Graph> cache(8);
///   Graph* graph = cache.find(key);      // counts as a use
///   cache.add(std::move(key), graph);    // releases the least recently used entry of a full cache
template <typename Key, typename Value>
class GraphCache {
 public:
  explicit GraphCache(std::size_t limit) : limit_(limit) {}

  /// Null if there is no such key.
  Value* find(const Key& key) {
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const auto& each) { return each->key == key; });
    if (entry == entries_.end()) return nullptr;
    (*entry)->last_use = ++uses_;
    return &(*entry)->value;
  }

  /// REQUIRES that the key is not in the cache. The reference is valid until the entry is released.
  Value& add(Key key, Value value) {
    SC_ASSERT(std::ranges::none_of(entries_, [&](const auto& each) { return each->key == key; }));
    while (!entries_.empty() && entries_.size() >= limit_) release_oldest();
    entries_.push_back(std::make_unique<Entry>(Entry{std::move(key), std::move(value), ++uses_}));
    return entries_.back()->value;
  }

  /// Releases a key, if it is there.
  void release(const Key& key) {
    std::erase_if(entries_, [&](const auto& each) { return each->key == key; });
  }

  void clear() { entries_.clear(); }

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Key key;
    Value value;
    uint64_t last_use = 0;
  };

  void release_oldest() {
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(),
                         [](const auto& a, const auto& b) { return a->last_use < b->last_use; }));
  }

  std::size_t limit_;
  uint64_t uses_ = 0;
  std::vector<std::unique_ptr<Entry>> entries_;
};

}  // namespace stagecraft::detail
