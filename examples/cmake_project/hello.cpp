#include <iostream>

#include <stagecraft/stagecraft.h>

#include <ATen/ops/ones.h>

int main() {
  const auto parts = stagecraft::split_args_kwargs_into_chunks({at::ones({7, 2})}, {}, 3);
  std::cout << "stagecraft " << stagecraft::version() << '\n';
  for (const auto& part : parts) std::cout << stagecraft::describe(part.args[0]) << '\n';
}
