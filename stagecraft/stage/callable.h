#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/stage/convert.h"
#include "stagecraft/tree/stage_body.h"

/// Makes a StageBody from anything callable:
///
///   stage_body(torch::nn::Linear(16, 16));                              a module, by its forward
///   stage_body(block, {"x", "mask"});                                   its kwargs by these names
///   stage_body([w](const at::Tensor& x) { return x.mm(w); }, {{"w", w}});
///   stage_body([](const Args& args, const Kwargs& kwargs) { ... });     as it is
///
/// A parameter may be a tensor, number, bool, string, c10::IValue, or a std::optional or
/// std::vector of these. A missing tensor is undefined, a missing optional is empty. Any other
/// missing argument, or a wrong type, is an ArgumentError. The result may be a tensor, a tuple or a
/// vector of them, or any c10::IValue.
namespace stagecraft {

namespace detail {

/// One value for each parameter: args, then kwargs by `names`; None if the argument is missing.
/// ArgumentError for too many args, an unknown name, or a parameter that is given twice.
std::vector<c10::IValue> place_arguments(const Args& args, const Kwargs& kwargs,
                                         const std::vector<std::string>& names,
                                         std::size_t num_parameters);
template <typename... P>
struct Parameters {};

template <typename F>
struct Signature;
template <typename C, typename R, typename... P>
struct Signature<R (C::*)(P...)> {
  using Types = Parameters<P...>;
};
template <typename C, typename R, typename... P>
struct Signature<R (C::*)(P...) const> {
  using Types = Parameters<P...>;
};
template <typename C, typename R, typename... P>
struct Signature<R (C::*)(P...) noexcept> {
  using Types = Parameters<P...>;
};
template <typename C, typename R, typename... P>
struct Signature<R (C::*)(P...) const noexcept> {
  using Types = Parameters<P...>;
};
template <typename R, typename... P>
struct Signature<R (*)(P...)> {
  using Types = Parameters<P...>;
};

template <typename Call, typename... P, std::size_t... I>
c10::IValue call_with(Call& call, Parameters<P...>, std::index_sequence<I...>, const Args& args,
                      const Kwargs& kwargs, const std::vector<std::string>& names) {
  std::vector<c10::IValue> storage;
  const c10::IValue* values = args.data();
  if (args.size() != sizeof...(P) || !kwargs.empty()) {
    storage = place_arguments(args, kwargs, names, sizeof...(P));
    values = storage.data();
  }
  return c10::IValue(call(Convert<std::decay_t<P>>::from(values[I], I)...));
}

template <typename Call, typename... P>
auto adapt(Call call, Parameters<P...> types, std::vector<std::string> names) {
  return [call = std::move(call), types, names = std::move(names)](const Args& args,
                                                                   const Kwargs& kwargs) mutable {
    return call_with(call, types, std::index_sequence_for<P...>(), args, kwargs, names);
  };
}

template <typename M>
concept HasPlainForward = requires {
  &M::forward;
};

/// A shared_ptr to a module, or a holder of one.
template <typename M>
concept ModulePointer = requires(M& m) {
  m->named_parameters();
  m->named_buffers();
};

/// A function of Args and Kwargs. (Checked after ModulePointer: testing a module holder with
/// std::invocable does not compile.)
template <typename F>
concept ArgumentsFunction = !ModulePointer<F> && std::invocable<F&, const Args&, const Kwargs&>;

/// A function with parameters of its own.
template <typename F>
concept HasOneCall = std::is_pointer_v<F> || requires {
  &F::operator();
};
template <typename F>
concept PlainFunction = !ModulePointer<F> && !ArgumentsFunction<F> && HasOneCall<F>;

// A forward that is a template or overloaded (torch::nn::Sequential) is called with tensors.
template <typename M>
c10::IValue call_with_tensors(M& module, const Args& args) {
  auto tensor = [&](std::size_t i) { return Convert<at::Tensor>::from(args[i], i); };
  if constexpr (requires { module->forward(at::Tensor()); }) {
    if (args.size() == 1) return c10::IValue(module->forward(tensor(0)));
  }
  if constexpr (requires { module->forward(at::Tensor(), at::Tensor()); }) {
    if (args.size() == 2) return c10::IValue(module->forward(tensor(0), tensor(1)));
  }
  if constexpr (requires { module->forward(at::Tensor(), at::Tensor(), at::Tensor()); }) {
    if (args.size() == 3) return c10::IValue(module->forward(tensor(0), tensor(1), tensor(2)));
  }
  place_arguments(args, {}, {}, 3);
  refuse_value(args.size(), "one to three tensors", c10::IValue());
}

template <typename M>
NamedTensors named(const M& items) {
  NamedTensors result;
  for (const auto& item : items) result.emplace_back(item.key(), item.value());
  return result;
}

}  // namespace detail

/// A torch::nn module: a holder (torch::nn::Linear) or a shared_ptr to a module. `names` are the
/// names of forward's parameters, for arguments by name.
template <detail::ModulePointer M>
StageBody stage_body(M module, std::vector<std::string> names = {}) {
  using Impl = std::remove_reference_t<decltype(*module)>;
  StageBody body;
  body.parameters = detail::named(module->named_parameters());
  body.buffers = detail::named(module->named_buffers());
  if constexpr (detail::HasPlainForward<Impl>) {
    using Types = typename detail::Signature<decltype(&Impl::forward)>::Types;
    auto call = [module](auto&&... values) mutable {
      return module->forward(std::forward<decltype(values)>(values)...);
    };
    body.forward = detail::adapt(std::move(call), Types(), std::move(names));
  } else {
    body.forward = [module](const Args& args, const Kwargs& kwargs) mutable {
      return detail::call_with_tensors(
          module, kwargs.empty() ? args : detail::place_arguments(args, kwargs, {}, args.size()));
    };
  }
  return body;
}

/// A function of Args and Kwargs.
template <detail::ArgumentsFunction F>
StageBody stage_body(F function, NamedTensors parameters = {}) {
  StageBody body;
  body.forward = [function = std::move(function)](const Args& args, const Kwargs& kwargs) mutable {
    return c10::IValue(function(args, kwargs));
  };
  body.parameters = std::move(parameters);
  return body;
}

/// A function with parameters of its own, with the tensors that it trains and the names of its
/// parameters.
template <detail::PlainFunction F>
StageBody stage_body(F function, NamedTensors parameters = {},
                     std::vector<std::string> names = {}) {
  StageBody body;
  if constexpr (std::is_pointer_v<F>) {
    body.forward =
        detail::adapt(function, typename detail::Signature<F>::Types(), std::move(names));
  } else {
    using Types = typename detail::Signature<decltype(&F::operator())>::Types;
    body.forward = detail::adapt(std::move(function), Types(), std::move(names));
  }
  body.parameters = std::move(parameters);
  return body;
}

}  // namespace stagecraft
