// Compiled once for each MPI, against its mpi.h. Knows neither torch nor the rest of the library.

#include "stagecraft/transport/mpi/mpi_plugin.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <limits>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace stagecraft::detail {
namespace {

#if defined(OPEN_MPI)
constexpr const char* kName = "Open MPI";
#else
constexpr const char* kName = "MPICH";
#endif

// A send of at most this many bytes is often complete when it returns, so it is tested at once.
// Every poll tests all requests, so a send that is already complete gets no entry among them.
constexpr uint64_t kSmall = 64 * 1024;
// MPI's counts are ints.
constexpr uint64_t kMaxCount = uint64_t{1} << 30U;

struct Group {
  MPI_Comm comm = MPI_COMM_NULL;
};

struct UnderWay {
  std::vector<MPI_Request> requests;  ///< for MPI_Testsome
  std::vector<void*> owners;          ///< the owner of each
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
  std::vector<MpiDone> done;
};

// Never destroyed: a thread may still use it while the process ends.
UnderWay& under_way() {
  static auto* const all = new UnderWay;
  return *all;
}

Group whole;

int32_t report(int code, const char* call, char* problem) {
  if (code == MPI_SUCCESS) return 0;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  std::snprintf(problem, kMpiProblemBytes, "%s: %.400s", call, text.data());
  return 1;
}

// A datatype for `size` bytes in one message, of any size.
class Bytes {
 public:
  explicit Bytes(uint64_t size) : count_(static_cast<int>(std::min(size, kMaxCount))) {
    if (size <= kMaxCount) return;
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Datatype blocks = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(kMaxCount), MPI_BYTE, &block);
    MPI_Type_contiguous(static_cast<int>(size / kMaxCount), block, &blocks);
    std::array<int, 2> lengths = {1, static_cast<int>(size % kMaxCount)};
    std::array<MPI_Aint, 2> places = {0, static_cast<MPI_Aint>(size - size % kMaxCount)};
    std::array<MPI_Datatype, 2> types = {blocks, MPI_BYTE};
    MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &made_);
    MPI_Type_commit(&made_);
    MPI_Type_free(&block);
    MPI_Type_free(&blocks);
    count_ = 1;
  }
  // Transfers in progress keep the datatype alive.
  ~Bytes() {
    if (made_ != MPI_DATATYPE_NULL) MPI_Type_free(&made_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return made_ == MPI_DATATYPE_NULL ? MPI_BYTE : made_; }

 private:
  int count_;
  MPI_Datatype made_ = MPI_DATATYPE_NULL;
};

int32_t start(MpiFacts* facts, char* problem) {
  int is_there = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Initialized(&is_there);
  facts->was_started = is_there;
  if (is_there != 0) {
    MPI_Query_thread(&level);
    // The program may call MPI on its own threads at any time, and cannot take turns with this
    // library.
    facts->is_single_threaded = level < MPI_THREAD_MULTIPLE ? 1 : 0;
    if (facts->is_single_threaded != 0) return 0;
  } else {
    // Serialized: calls come from one thread at a time.
    if (report(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread",
               problem) != 0) {
      return 1;
    }
    if (level < MPI_THREAD_SERIALIZED) {
      std::snprintf(problem, kMpiProblemBytes, "it supports calls from one thread only");
      return 1;
    }
    // By default an error of MPI ends the whole job. This library reports errors itself.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  }
  whole.comm = MPI_COMM_WORLD;
  MPI_Comm_rank(MPI_COMM_WORLD, &facts->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &facts->num_ranks);
  int* max_tag = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&max_tag), &is_known);
  // 32767 is the least that the standard guarantees.
  facts->max_tag = is_known != 0 ? *max_tag : std::numeric_limits<int16_t>::max();
  return 0;
}

void finish() {
  MPI_Finalize();
}

int32_t wait_for_all() {
  return MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : 1;
}

int32_t make_group(int32_t num_ranks, void** group, char* problem) {
  MPI_Group everyone = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  int range[1][3] = {{0, num_ranks - 1, 1}};  // NOLINT(*-c-arrays): MPI's type
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &everyone);
  MPI_Group_range_incl(everyone, 1, range, &some);
  // MPI_Comm_create_group is collective over the ranks of the new communicator only.
  // MPI_Comm_create and MPI_Comm_split would wait for all ranks of the job.
  const int32_t failed = report(MPI_Comm_create_group(MPI_COMM_WORLD, some, num_ranks, &comm),
                                "MPI_Comm_create_group", problem);
  MPI_Group_free(&some);
  MPI_Group_free(&everyone);
  if (failed != 0) return failed;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  *group = new Group{comm};
  return 0;
}

void free_group(void* group) {
  auto* const mine = static_cast<Group*>(group);
  MPI_Comm_free(&mine->comm);
  delete mine;
}

void* whole_group() {
  return &whole;
}

void keep(MPI_Request request, void* owner) {
  under_way().requests.push_back(request);
  under_way().owners.push_back(owner);
}

int32_t send(void* group, int32_t to, int32_t tag, const void* bytes, uint64_t size, void* owner,
             int32_t* is_done, char* problem) {
  const Bytes message(size);
  MPI_Request request = MPI_REQUEST_NULL;
  if (report(MPI_Isend(bytes, message.count(), message.type(), to, tag,
                       static_cast<Group*>(group)->comm, &request),
             "MPI_Isend", problem) != 0) {
    return 1;
  }
  int is_over = 0;
  if (size <= kSmall &&
      report(MPI_Test(&request, &is_over, MPI_STATUS_IGNORE), "MPI_Test", problem) != 0) {
    return 1;
  }
  *is_done = is_over;
  // A completed request is already freed, and must not be tested again.
  if (is_over == 0) keep(request, owner);
  return 0;
}

int32_t receive(void* group, int32_t from, int32_t tag, void* bytes, uint64_t size, void* owner,
                int32_t* is_done, char* problem) {
  const Bytes message(size);
  MPI_Request request = MPI_REQUEST_NULL;
  *is_done = 0;
  if (report(MPI_Irecv(bytes, message.count(), message.type(), from, tag,
                       static_cast<Group*>(group)->comm, &request),
             "MPI_Irecv", problem) != 0) {
    return 1;
  }
  keep(request, owner);
  return 0;
}

int32_t poll(const MpiDone** done) {
  auto& all = under_way();
  all.done.clear();
  *done = nullptr;
  if (all.requests.empty()) return 0;
  all.indices.resize(all.requests.size());
  all.statuses.resize(all.requests.size());
  int count = 0;
  // One call for all requests. It also drives the transfers of those that are not complete.
  const int code = MPI_Testsome(static_cast<int>(all.requests.size()), all.requests.data(), &count,
                                all.indices.data(), all.statuses.data());
  if (count == MPI_UNDEFINED || count <= 0) return 0;
  all.indices.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.indices.size(); ++i) {
    int is_cancelled = 0;
    MPI_Test_cancelled(&all.statuses[i], &is_cancelled);
    // MPI_ERROR is set only if the call returned an error.
    const bool is_failed = code != MPI_SUCCESS && all.statuses[i].MPI_ERROR != MPI_SUCCESS;
    all.done.push_back({all.owners[static_cast<std::size_t>(all.indices[i])],
                        is_failed || is_cancelled != 0 ? 1 : 0});
  }
  // In descending order, so that the last element, which fills a gap, is never one that is to be
  // removed.
  std::sort(all.indices.begin(), all.indices.end(), std::greater<>());
  for (const int index : all.indices) {
    const auto place = static_cast<std::size_t>(index);
    all.requests[place] = all.requests.back();
    all.owners[place] = all.owners.back();
    all.requests.pop_back();
    all.owners.pop_back();
  }
  *done = all.done.data();
  return count;
}

void cancel(void* owner) {
  auto& all = under_way();
  for (std::size_t i = 0; i < all.owners.size(); ++i) {
    if (all.owners[i] == owner) MPI_Cancel(&all.requests[i]);
  }
}

int32_t ping_pong(void* group, int32_t other, int32_t begins, const void* out, void* in,
                  uint64_t size, int64_t rounds) {
  constexpr int kTag = 7;
  const Bytes message(size);
  const MPI_Comm comm = static_cast<Group*>(group)->comm;
  int code = MPI_SUCCESS;
  const auto send_it = [&] {
    code |= MPI_Send(out, message.count(), message.type(), other, kTag, comm);
  };
  const auto receive_it = [&] {
    code |= MPI_Recv(in, message.count(), message.type(), other, kTag, comm, MPI_STATUS_IGNORE);
  };
  for (int64_t i = 0; i < rounds && code == MPI_SUCCESS; ++i) {
    if (begins != 0) send_it();
    receive_it();
    if (begins == 0) send_it();
  }
  return code == MPI_SUCCESS ? 0 : 1;
}

int32_t probe(void* group, int32_t from, int32_t tag) {
  int is_there = 0;
  const int code =
      MPI_Iprobe(from, tag, static_cast<Group*>(group)->comm, &is_there, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS ? is_there : 0;
}

constexpr MpiPlugin kPlugin = {
    kMpiPluginVersion, kName, start,  finish,    make_group, free_group,  whole_group, send,
    receive,           poll,  cancel, ping_pong, probe,      wait_for_all};

}  // namespace
}  // namespace stagecraft::detail

extern "C" __attribute__((visibility("default"))) const stagecraft::detail::MpiPlugin*
stagecraft_mpi_plugin() {
  return &stagecraft::detail::kPlugin;
}
