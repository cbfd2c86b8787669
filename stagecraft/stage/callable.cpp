#include "stagecraft/stage/callable.h"

#include <algorithm>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft::detail {

std::vector<c10::IValue> place_arguments(const Args& args, const Kwargs& kwargs,
                                         const std::vector<std::string>& names,
                                         std::size_t num_parameters) {
  require<ArgumentError>(args.size() <= num_parameters,
                         "the stage's function takes {} arguments, got {}", num_parameters,
                         args.size());
  std::vector<c10::IValue> values(args.begin(), args.end());
  values.resize(num_parameters);
  for (const auto& [name, value] : kwargs) {
    const auto found = std::find(names.begin(), names.end(), name);
    const auto at = static_cast<std::size_t>(found - names.begin());
    require<ArgumentError>(found != names.end() && at < num_parameters,
                           "the stage's function has no parameter named \"{}\"; the names given to "
                           "stage_body are: [{}]",
                           name, fmt::join(names, ", "));
    require<ArgumentError>(at >= args.size(), "parameter \"{}\" is given by position and by name",
                           name);
    values[at] = value;
  }
  return values;
}

void refuse_value(std::size_t parameter, const char* expected, const c10::IValue& got) {
  throw ArgumentError(fmt::format("argument {} of the stage's function: expected {}, got {}",
                                  parameter, expected, describe(got)));
}

}  // namespace stagecraft::detail
