// NCCL, as far as the probe calls it: every call's buffers must be there, and calls of a group must be closed.
#include <nccl.h>

#include <string>
#include <vector>

#include "world.h"

namespace rehearse::paper {
namespace {

struct Communicator {
  int size, rank;
};
int open_groups = 0;
double group_time = 0;

std::size_t bytes_of(ncclDataType_t t) { return t == ncclFloat32 ? 4 : t == ncclInt8 ? 1 : 2; }
ncclResult_t call(const char* what, const void* from, std::size_t read, const void* to, std::size_t written, ncclComm_t comm, cudaStream_t stream) {
  if (comm == nullptr) refuse(std::string(what) + ": no communicator");
  if (read > 0 && !paper_is_device_memory(from, read)) refuse(std::string(what) + ": reads " + std::to_string(read) + " bytes that are not there");
  if (written > 0 && !paper_is_device_memory(to, written)) refuse(std::string(what) + ": writes " + std::to_string(written) + " bytes that are not there");
  if (open_groups == 0) paper_runs(stream, 1e-5, what);
  return ncclSuccess;
}
const Communicator& of(ncclComm_t c) { return *reinterpret_cast<const Communicator*>(c); }

}  // namespace

extern "C" {
const char* ncclGetErrorString(ncclResult_t) { return "an error on paper"; }
ncclResult_t ncclGetVersion(int* v) { return *v = 22800, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return *id = {}, ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* c, int size, ncclUniqueId, int rank) { return *c = reinterpret_cast<ncclComm_t>(new Communicator{size, rank}), ncclSuccess; }
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  if (key < 0) refuse("ncclCommSplit: key");
  return *out = color == NCCL_SPLIT_NOCOLOR ? nullptr : reinterpret_cast<ncclComm_t>(new Communicator{of(c).size, key}), ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) { return delete reinterpret_cast<Communicator*>(c), ncclSuccess; }
ncclResult_t ncclAllReduce(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t, ncclComm_t c, cudaStream_t st) { return call("ncclAllReduce", s, n * bytes_of(t), r, n * bytes_of(t), c, st); }
ncclResult_t ncclAllGather(const void* s, void* r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t st) { return call("ncclAllGather", s, n * bytes_of(t), r, n * bytes_of(t), c, st); }
ncclResult_t ncclReduceScatter(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t, ncclComm_t c, cudaStream_t st) { return call("ncclReduceScatter", s, n * bytes_of(t), r, n * bytes_of(t), c, st); }
ncclResult_t ncclBroadcast(const void* s, void* r, size_t n, ncclDataType_t t, int, ncclComm_t c, cudaStream_t st) { return call("ncclBroadcast", s, n * bytes_of(t), r, n * bytes_of(t), c, st); }
ncclResult_t ncclReduce(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t, int, ncclComm_t c, cudaStream_t st) { return call("ncclReduce", s, n * bytes_of(t), r, n * bytes_of(t), c, st); }
ncclResult_t ncclSend(const void* s, size_t n, ncclDataType_t t, int, ncclComm_t c, cudaStream_t st) {
  if (open_groups == 0) refuse("ncclSend outside a group waits for its receiver");
  group_time = 1e-5, paper_runs(st, 1e-5, "ncclSend");
  return call("ncclSend", s, n * bytes_of(t), nullptr, 0, c, st);
}
ncclResult_t ncclRecv(void* r, size_t n, ncclDataType_t t, int, ncclComm_t c, cudaStream_t st) { return paper_runs(st, 1e-5, "ncclRecv"), call("ncclRecv", nullptr, 0, r, n * bytes_of(t), c, st); }
ncclResult_t ncclGroupStart() { return ++open_groups, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (--open_groups < 0) refuse("ncclGroupEnd without a beginning");
  return ncclSuccess;
}
}
}  // namespace rehearse::paper
