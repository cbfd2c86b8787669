#include "stagecraft/runtime/argument_builder.h"

#include "stagecraft/base/check.h"

namespace stagecraft {

void ArgumentBuilder::place(const InputPort& to, const c10::IValue& value, ArgumentOrigin origin) {
  if (!to.name.empty()) return set(to.name, value, origin);
  const auto at = static_cast<std::size_t>(to.position);
  if (arguments_.args.size() <= at) {
    arguments_.args.resize(at + 1);
    origins_.resize(at + 1);
    is_placed_.resize(at + 1);
  }
  arguments_.args[at] = value;
  origins_[at] = origin;
  is_placed_[at] = true;
}

void ArgumentBuilder::append(const c10::IValue& value, ArgumentOrigin origin) {
  while (next_ < is_placed_.size() && is_placed_[next_]) ++next_;
  if (next_ < is_placed_.size()) {
    arguments_.args[next_] = value;
    origins_[next_] = origin;
    is_placed_[next_] = true;
  } else {
    arguments_.args.push_back(value);
    origins_.push_back(origin);
  }
  ++next_;
}

void ArgumentBuilder::set(const std::string& name, const c10::IValue& value,
                          ArgumentOrigin origin) {
  arguments_.kwargs.set(name, value);
  named_origins_.push_back(origin);
}

Arguments ArgumentBuilder::finish(StageId stage, std::vector<ArgumentOrigin>& origins) {
  for (std::size_t i = 0; i < is_placed_.size(); ++i) {
    require<ArgumentError>(is_placed_[i], "nothing is connected to argument {} of stage {}", i,
                           stage.value());
  }
  origins = std::move(origins_);
  origins.insert(origins.end(), named_origins_.begin(), named_origins_.end());
  return std::move(arguments_);
}

}  // namespace stagecraft
