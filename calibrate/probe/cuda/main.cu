// rehearse-probe on a machine with CUDA.
#include "calibrate/probe/cuda/cuda_device.h"
#include "calibrate/probe/cuda/self_test.h"
#include "calibrate/probe/program.h"

int main(int count, char** values) {
  using namespace rehearse::calibrate;
  return probe_main({values + 1, values + count}, {count_cuda_gpus, open_cuda_device, REHEARSE_VERSION, self_test});
}
