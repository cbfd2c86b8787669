#include "stagecraft/stage/memory_meter.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {
namespace detail {

/// The accounts and the blocks on them. A block is identified by its address: addresses of CUDA
/// devices and of the host are in one space.
class MemoryBlocks {
 public:
  explicit MemoryBlocks(std::size_t accounts) : accounts_(accounts) {}

  std::size_t accounts() const { return accounts_.size(); }

  int64_t current(std::size_t account) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return accounts_[account].current;
  }

  int64_t peak(std::size_t account) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return accounts_[account].peak;
  }

  void reset_peak(std::size_t account) {
    const std::lock_guard<std::mutex> lock(mutex_);
    accounts_[account].peak = accounts_[account].current;
  }

  void add(const void* address, int64_t bytes, std::size_t account) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, is_new] = blocks_.try_emplace(address, Block{bytes, account});
    if (!is_new) {
      // The last block at this address was freed on a thread without a scope.
      accounts_[found->second.account].current -= found->second.bytes;
      found->second = Block{bytes, account};
    }
    put(bytes, account);
  }

  bool remove(const void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return false;
    accounts_[found->second.account].current -= found->second.bytes;
    blocks_.erase(found);
    return true;
  }

  bool move(const void* address, std::size_t account) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return false;
    accounts_[found->second.account].current -= found->second.bytes;
    found->second.account = account;
    put(found->second.bytes, account);
    return true;
  }

 private:
  struct Account {
    int64_t current = 0;
    int64_t peak = 0;
  };
  struct Block {
    int64_t bytes;
    std::size_t account;
  };

  void put(int64_t bytes, std::size_t account) {
    Account& to = accounts_[account];
    to.current += bytes;
    to.peak = std::max(to.peak, to.current);
  }

  mutable std::mutex mutex_;
  std::vector<Account> accounts_;
  std::unordered_map<const void*, Block> blocks_;
};

}  // namespace detail

namespace {

using detail::MemoryBlocks;
namespace profiler = torch::profiler::impl;

/// A profiler that is disabled except for memory. torch treats any object in this slot as a
/// profiler, and asks it whether it is on.
class Listener final : public profiler::ProfilerStateBase {
 public:
  Listener(std::shared_ptr<MemoryBlocks> blocks, std::size_t account, const Listener* around)
      : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled,
                                                   /*report_input_shapes=*/false,
                                                   /*profile_memory=*/true)),
        blocks_(std::move(blocks)),
        account_(account),
        around_(around) {}

  void reportMemoryUsage(void* address, int64_t bytes, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    if (bytes > 0) {
      blocks_->add(address, bytes, account_);
      return;
    }
    const Listener* each = this;
    // Memory may be freed in a different scope than the one that has allocated it.
    while (each != nullptr && !each->blocks_->remove(address)) each = each->around_;
  }

  profiler::ActiveProfilerType profilerType() override {
    return profiler::ActiveProfilerType::NONE;
  }

 private:
  const std::shared_ptr<MemoryBlocks> blocks_;
  const std::size_t account_;
  const Listener* const around_;  // alive as long as this: the thread's state holds both
};

std::size_t checked(const MemoryBlocks& blocks, int account) {
  require<ArgumentError>(account >= 0 && static_cast<std::size_t>(account) < blocks.accounts(),
                         "memory account: expected one of 0 to {}, got {}", blocks.accounts() - 1,
                         account);
  return static_cast<std::size_t>(account);
}

const void* address_of(const at::Tensor& tensor) {
  require<ArgumentError>(tensor.defined() && tensor.has_storage(),
                         "memory meter: expected a tensor with storage, got {}",
                         tensor.defined() ? describe(tensor) : "an undefined one");
  return tensor.storage().data();
}

std::shared_ptr<Listener> make_listener(std::shared_ptr<MemoryBlocks> blocks, int account) {
  const std::size_t number = checked(*blocks, account);
  auto* const before = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  const auto* const around = dynamic_cast<const Listener*>(before);
  // The thread has one slot for profilers. A torch profiler that is replaced would miss its events.
  require<Error>(before == nullptr || around != nullptr,
                 "a memory meter's scope cannot begin inside a torch profiler of the same thread");
  return std::make_shared<Listener>(std::move(blocks), number, around);
}

}  // namespace

MemoryMeter::MemoryMeter(int accounts) {
  require<ArgumentError>(accounts > 0, "a memory meter needs at least one account, got {}",
                         accounts);
  blocks_ = std::make_shared<MemoryBlocks>(static_cast<std::size_t>(accounts));
}

int MemoryMeter::accounts() const {
  return static_cast<int>(blocks_->accounts());
}

int64_t MemoryMeter::current(int account) const {
  return blocks_->current(checked(*blocks_, account));
}

int64_t MemoryMeter::peak(int account) const {
  return blocks_->peak(checked(*blocks_, account));
}

void MemoryMeter::reset_peak(int account) {
  blocks_->reset_peak(checked(*blocks_, account));
}

bool MemoryMeter::take_over(const at::Tensor& tensor, int account) {
  const std::size_t number = checked(*blocks_, account);
  return blocks_->move(address_of(tensor), number);
}

bool MemoryMeter::forget(const at::Tensor& tensor) {
  return blocks_->remove(address_of(tensor));
}

MemoryMeter::Scope::Scope(const MemoryMeter& meter, int account)
    : listening_(c10::DebugInfoKind::PROFILER_STATE, make_listener(meter.blocks_, account)) {}

}  // namespace stagecraft
