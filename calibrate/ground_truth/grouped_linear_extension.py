"""Builds the part of Transformer Engine's PyTorch extension that grouped linear layers call, for a machine without a GPU.

For grouped_linear_host.py: the extension's conversions per expert (quantizers, tensors and their handles, outputs, swizzled scales) run as they
are, on tensors in host memory; kernels, products and CUDA itself are empty functions, so that neither launches nor cuBLASLt is in the time.
Needs torch with its headers, g++ and the CUDA toolkit's headers; Transformer Engine unpacked (2.12 or later). Takes minutes.

    python calibrate/ground_truth/grouped_linear_extension.py FOLDER OUT [CUDA_INCLUDE]
writes OUT/transformer_engine_torch.so.
"""

import os
import shutil
import subprocess
import sys
import sysconfig

import torch

SOURCES = ["common.cpp", "quantizer.cpp", "type_converters.cpp", "extensions/cast.cpp", "extensions/gemm.cpp", "extensions/swizzle.cpp"]

# What the sources name of CUDA's libraries and of PyTorch's CUDA half, and never reach here.
HEADERS = {
    "ATen/cuda/CUDAContext.h": """
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
namespace at::cuda {
struct CUDAStream { operator cudaStream_t() const { return nullptr; } };
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline int current_device() { return 0; }
struct CUDAGuard { template <class T> explicit CUDAGuard(T) {} };
}
""",
    "ATen/cuda/CUDAGeneratorImpl.h": """
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAContext.h>
namespace at {
struct PhiloxCudaState {};
struct CUDAGeneratorImpl : c10::GeneratorImpl { std::mutex mutex_; PhiloxCudaState philox_cuda_state(uint64_t) { return {}; } static DeviceType device_type() { return kCPU; } };
namespace cuda::detail { const Generator& getDefaultCUDAGenerator(int = -1); }
}
""",
    "ATen/cuda/CUDAGraphsUtils.cuh": "",
    "ATen/cudnn/Handle.h": "",
    "cublas_v2.h": """
#include <library_types.h>
#include <limits>
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
extern "C" const char* cublasGetStatusString(cublasStatus_t);
""",
    "cublasLt.h": "#include <cublas_v2.h>",
    "cudnn.h": 'typedef enum { CUDNN_STATUS_SUCCESS = 0 } cudnnStatus_t;\nextern "C" const char* cudnnGetErrorString(cudnnStatus_t);',
    "nvrtc.h": 'typedef enum { NVRTC_SUCCESS = 0 } nvrtcResult;\nextern "C" const char* nvrtcGetErrorString(nvrtcResult);',
    "nccl.h": 'typedef enum { ncclSuccess = 0 } ncclResult_t;\ntypedef struct { int unused; } ncclUniqueId;\ntypedef struct ncclComm* ncclComm_t;\nextern "C" const char* ncclGetErrorString(ncclResult_t);',
}

EMPTY = ["nvte_quantize_v2", "nvte_multi_tensor_gemm", "nvte_compute_amax", "nvte_compute_amax_with_config", "nvte_compute_scale_from_amax",
         "nvte_multi_tensor_swizzle_scaling_factors", "nvte_swizzle_scaling_factors", "nvte_multi_cast_transpose", "nvte_memset", "cudaMemsetAsync"]

MODULE = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace transformer_engine;
  py::enum_<DType> types(m, "DType", py::module_local());
  for (auto [name, value] : {std::pair{"kByte", DType::kByte}, {"kInt32", DType::kInt32}, {"kInt64", DType::kInt64}, {"kFloat32", DType::kFloat32}, {"kFloat16", DType::kFloat16},
                             {"kBFloat16", DType::kBFloat16}, {"kFloat8E4M3", DType::kFloat8E4M3}, {"kFloat8E5M2", DType::kFloat8E5M2}, {"kFloat8E8M0", DType::kFloat8E8M0}, {"kFloat4E2M1", DType::kFloat4E2M1}})
    types.value(name, value);
  m.def("split_quantize", &pytorch::split_quantize, py::arg("tensor"), py::arg("split_sections"), py::arg("quantizer_list"), py::arg("disable_bulk_allocation") = false);
  m.def("quantize", pytorch::quantize, py::arg("tensor"), py::arg("quantizer"), py::arg("output") = py::none(), py::arg("noop") = py::none());
  m.def("te_general_grouped_gemm", &pytorch::te_general_grouped_gemm);
}
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def on_host(source):
    """Tensors on the GPU become tensors in host memory; random numbers on the GPU are left out."""
    with open(source) as file:
        text = file.read().replace("kCUDA", "kCPU").replace("at::CUDA(", "at::CPU(")
    begin, end = text.find("void philox_unpack("), text.find("at::PhiloxCudaState init_philox_state(")
    if source.endswith("/common.cpp"):
        text = text[:begin] + "void philox_unpack(at::PhiloxCudaState, int64_t*) {}\n" + text[end:]
    with open(source, "w") as file:
        file.write(text)


def build(folder, out, cuda):
    work = os.path.join(out, "work")
    engine, headers = os.path.join(work, "transformer_engine"), os.path.join(work, "headers")
    shutil.copytree(os.path.join(folder, "transformer_engine"), engine, dirs_exist_ok=True)
    csrc = os.path.join(engine, "pytorch", "csrc")
    for root, _, names in os.walk(csrc):
        for name in names:
            on_host(os.path.join(root, name))
    for name, text in HEADERS.items():
        write(os.path.join(headers, name), "#pragma once\n" + text)
    # The extension's look-up of its Python classes, with a module of the functions that are needed.
    with open(os.path.join(csrc, "extensions", "pybind.cpp")) as file:
        text = file.read()
    end = "}  // namespace transformer_engine::pytorch\n"
    write(os.path.join(csrc, "extensions", "module.cpp"), text[: text.index(end) + len(end)] + MODULE)
    write(os.path.join(work, "empty.cpp"), 'extern "C" {\n' + "".join(f"int {name}() {{ return 0; }}\n" for name in EMPTY)
          + "}\nnamespace transformer_engine::cuda { int sm_arch(int) { return 100; } int sm_count(int) { return 1; } int current_device() { return 0; } int num_devices() { return 1; } }\n")
    torch_root = os.path.dirname(torch.__file__)
    include = [headers, os.path.join(torch_root, "include"), os.path.join(torch_root, "include", "torch", "csrc", "api", "include"), cuda, sysconfig.get_paths()["include"],
               work, engine, os.path.join(engine, "common", "include"), os.path.join(engine, "common"), csrc]
    flags = ["-O2", "-std=c++17", "-fPIC", "-w", "-DTORCH_EXTENSION_NAME=transformer_engine_torch"] + ["-I" + path for path in include]
    objects = []
    for source in [os.path.join(csrc, name) for name in SOURCES + ["extensions/module.cpp"]] + [os.path.join(engine, "common", "transformer_engine.cpp"), os.path.join(work, "empty.cpp")]:
        objects.append(os.path.join(work, f"{len(objects)}.o"))
        print(os.path.relpath(source, work), file=sys.stderr)
        subprocess.run(["g++", *flags, "-c", source, "-o", objects[-1]], check=True)
    library = os.path.join(torch_root, "lib")
    # What is not there is only missed when it is called.
    subprocess.run(["g++", "-shared", "-o", os.path.join(out, "transformer_engine_torch.so"), *objects, "-L" + library, "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10",
                    "-Wl,-rpath," + library, "-Wl,-z,lazy"], check=True)
    shutil.rmtree(work)


if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "/usr/local/cuda/include")
