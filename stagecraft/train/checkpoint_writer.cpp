#include "stagecraft/train/checkpoint_writer.h"

#include <exception>
#include <thread>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "stagecraft/base/thread_name.h"

namespace stagecraft {

struct CheckpointWriter::State {
  std::string folder;
  int32_t keep;
  std::string newest;
  std::thread thread;
  // Written by the thread, read after it was joined.
  std::string written;
  std::exception_ptr error;
};

namespace {

// The tensors are copied, because the trainer changes them in place in the next update.
void copy_tensors(Checkpoint& checkpoint) {
  const at::NoGradGuard no_grad;
  for (auto& sections : checkpoint.stages) {
    for (auto& [section, tensors] : sections) {
      for (auto& [name, tensor] : tensors) {
        tensor = tensor.is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
      }
    }
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, int32_t keep)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
  state_->keep = keep;
}

CheckpointWriter::~CheckpointWriter() {
  if (state_->thread.joinable()) state_->thread.join();
}

void CheckpointWriter::start(Checkpoint checkpoint) {
  finish();
  if (checkpoint.is_elsewhere) return;
  copy_tensors(checkpoint);
  state_->thread = std::thread([state = state_.get(), checkpoint = std::move(checkpoint)] {
    detail::name_thread("sc save");
    try {
      state->written = save_checkpoint(state->folder, checkpoint, state->keep);
    } catch (...) {
      state->error = std::current_exception();
    }
  });
}

void CheckpointWriter::finish() {
  if (!state_->thread.joinable()) return;
  state_->thread.join();
  if (!state_->written.empty()) state_->newest = std::exchange(state_->written, {});
  if (auto error = std::exchange(state_->error, nullptr)) std::rethrow_exception(error);
}

bool CheckpointWriter::is_started() const {
  return state_->thread.joinable();
}

const std::string& CheckpointWriter::newest() const {
  return state_->newest;
}

}  // namespace stagecraft
