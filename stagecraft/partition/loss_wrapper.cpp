#include "stagecraft/partition/loss_wrapper.h"

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

c10::IValue TrivialLossWrapper::forward(const Args& args, const Kwargs& kwargs) {
  require<ArgumentError>(
      args.size() == 2 && args[0].isTensor() && args[1].isTensor() && kwargs.empty(),
      "a trivial loss wrapper takes two tensors, x and target, got {} arguments",
      args.size() + kwargs.size());
  const c10::IValue output = module().forward({args[0]}, {});
  if (!output.isTensor()) {
    throw ArgumentError("a trivial loss wrapper needs a model that returns a tensor, got " +
                        describe(output));
  }
  return loss_(output.toTensor(), args[1].toTensor());
}

StageBody loss_body(std::shared_ptr<LossWrapper> wrapper) {
  StageBody body;
  for (const auto& [name, tensor] : wrapper->module().parameters) {
    body.parameters.emplace_back("module." + name, tensor);
  }
  for (const auto& [name, tensor] : wrapper->module().buffers) {
    body.buffers.emplace_back("module." + name, tensor);
  }
  body.forward = [wrapper = std::move(wrapper)](const Args& args, const Kwargs& kwargs) {
    return wrapper->forward(args, kwargs);
  };
  return body;
}

}  // namespace stagecraft
