#include "stagecraft/train/text_data.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>

#include <ATen/ops/empty.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/train/durable_file.h"

namespace stagecraft {

namespace {

at::Tensor to_tensor(std::string_view text) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  return tensor;
}

/// Numbers from 0 to below `range` from one seed, the same on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t range) {
    return static_cast<int64_t>(mix_seed(seed_, 0, count_++, kWholeModel) %
                                static_cast<uint64_t>(range));
  }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

}  // namespace

TextData TextData::read(const std::vector<std::string>& paths, double held_out) {
  require<ArgumentError>(!paths.empty(), "expected at least one text file, got none");
  std::string text;
  for (const std::string& path : paths) text += detail::read_text(path);
  return TextData(std::move(text), held_out);
}

TextData::TextData(std::string text, double held_out) {
  require<ArgumentError>(held_out >= 0 && held_out < 1,
                         "expected a held-out share from 0 to below 1, got {}", held_out);
  require<ArgumentError>(!text.empty(), "expected a text, got an empty one");
  checksum_ = detail::checksum(std::as_bytes(std::span(text)));
  const auto kept = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - held_out));
  training_ = to_tensor(std::string_view(text).substr(0, kept));
  evaluation_ = to_tensor(std::string_view(text).substr(kept));
}

double TextData::unigram_entropy() const {
  std::array<int64_t, 256> counts{};
  int64_t all = 0;
  for (const at::Tensor* part : {&training_, &evaluation_}) {
    const auto* bytes = part->const_data_ptr<uint8_t>();
    for (int64_t i = 0; i < part->numel(); ++i) ++counts[bytes[i]];
    all += part->numel();
  }
  double entropy = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(all);
    entropy -= share * std::log(share);
  }
  return entropy;
}

TextRows::TextRows(at::Tensor text, int64_t length, uint64_t seed)
    : text_(std::move(text)), length_(length), seed_(seed) {
  require<ArgumentError>(length >= 1, "expected rows of at least one byte, got {}", length);
  require<ArgumentError>(text_.numel() > 2 * length,
                         "expected a text of at least {} bytes for rows of {}, got {}",
                         2 * length + 1, length, text_.numel());
  per_pass_ = (text_.numel() - length) / length;
}

void TextRows::set_position(int64_t position) {
  require<ArgumentError>(position >= 0, "expected a position of at least 0, got {}", position);
  position_ = position;
}

void TextRows::start_pass(int64_t pass) {
  pass_ = pass;
  Draws draws(mix_seed(seed_, static_cast<uint64_t>(pass), 0, kWholeModel));
  shift_ = draws.below(length_);
  order_.resize(static_cast<std::size_t>(per_pass_));
  std::iota(order_.begin(), order_.end(), 0);
  for (std::size_t i = order_.size() - 1; i > 0; --i) {
    std::swap(order_[i],
              order_[static_cast<std::size_t>(draws.below(static_cast<int64_t>(i) + 1))]);
  }
}

std::pair<at::Tensor, at::Tensor> TextRows::draw(int64_t rows) {
  at::Tensor inputs = at::empty({rows, length_}, at::kLong);
  at::Tensor targets = at::empty({rows, length_}, at::kLong);
  const auto* bytes = text_.const_data_ptr<uint8_t>();
  for (int64_t r = 0; r < rows; ++r, ++position_) {
    if (position_ / per_pass_ != pass_) start_pass(position_ / per_pass_);
    const int64_t row = order_[static_cast<std::size_t>(position_ % per_pass_)];
    const uint8_t* start = bytes + shift_ + row * length_;
    auto* input = inputs.mutable_data_ptr<int64_t>() + r * length_;
    auto* target = targets.mutable_data_ptr<int64_t>() + r * length_;
    for (int64_t i = 0; i < length_; ++i) {
      input[i] = start[i];
      target[i] = start[i + 1];
    }
  }
  return {inputs, targets};
}

}  // namespace stagecraft
