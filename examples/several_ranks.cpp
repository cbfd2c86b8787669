// One program for threads, processes and machines: each rank has a stage of its own.
//
//   several_ranks                                                two threads
//   several_ranks --ranks 4                                      four threads
//   torchrun --no-python --nproc-per-node 2 several_ranks        two processes, over gloo
//   mpirun -np 2 several_ranks                                   two processes, over MPI
//   torchrun --no-python --nproc-per-node 4 several_ranks --replicas 2      two pipelines of two
//   ranks
//
// --transport local|gloo|nccl|mpi requires one of them.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

namespace {

struct Options {
  WorldOptions world = {.local_ranks = 2};
  int32_t replicas = 1;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--ranks") {
      options.world.ranks = std::atoi(value.c_str());
    } else if (name == "--replicas") {
      options.replicas = std::atoi(value.c_str());
    } else if (name == "--transport") {
      options.world.transport = value;
    } else {
      throw ArgumentError("expected --ranks N, --replicas N or --transport WORD, got " + name);
    }
  }
  return options;
}

void train(Transport& transport, int32_t replicas, c10::Device device) {
  const int32_t stages = transport.num_ranks() / replicas;
  const int32_t own = transport.rank().value() % stages;

  // A stage has a generator of its own, so its initial weights do not depend on its rank.
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(own));
  const at::Tensor weight = (at::randn({32, 32}, generator) * 0.2).to(device).requires_grad_();
  const at::Tensor bias = torch::zeros({32}, device).requires_grad_();
  std::vector<Stage> stage;
  stage.emplace_back(
      StageId(own), stages,
      stage_body([=](const at::Tensor& x) { return x + at::tanh(torch::addmm(bias, x, weight)); },
                 {{"weight", weight}, {"bias", bias}}));
  Runner runner(
      transport, std::move(stage),
      {.schedule = "1F1B",
       .loss = [](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); },
       .seed = 0,
       .replicas = replicas});

  torch::optim::SGD optimizer({weight, bias}, torch::optim::SGDOptions(0.5));
  generator.set_current_seed(99);
  const at::Tensor all = at::randn({64, 32}, generator).to(device);
  const at::Tensor x = all.chunk(replicas)[runner.replica()];  // its part of the batch
  const at::Tensor target = x.roll(1, 1);
  for (int step = 0; step <= 40; ++step) {
    optimizer.zero_grad();
    const StepResult result = runner.step(own == 0 ? Args{x} : Args{}, {},
                                          own == stages - 1 ? c10::IValue(target) : c10::IValue(),
                                          {.microbatches = 4, .everywhere = true});
    optimizer.step();
    if (transport.rank() == Rank(0) && step % 10 == 0) {
      std::printf("step %2d  loss %.4f\n", step, result.loss().item<double>());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    World world = World::from_environment(options.world);
    if (world.rank() == Rank(0)) {
      std::printf("%d ranks over %s\n", world.num_ranks(), world.transport_name().c_str());
    }
    // Over NCCL each rank uses a GPU, otherwise the CPU.
    world.run([&](Transport& transport) { train(transport, options.replicas, world.device()); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "several_ranks: %s\n", error.what());
    return 1;
  }
}
