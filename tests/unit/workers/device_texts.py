"""What CUDA's and HIP's libraries said on devices: where it was read, the type, the text.

The texts are shortened. Where only a part was to be read, the source says so, and the rest is put around it
as torch prints it. Without a type it is a line of the log of a process that aborted.
"""

GITHUB = "https://github.com"
# Caused on purpose, each in a process of its own, on 2026-11-27.
H200 = "an H200 with torch 2.11.0, CUDA 13.0, NCCL 2.28.9"

OUT_OF_MEMORY = [
    (
        f"{GITHUB}/Comfy-Org/ComfyUI/issues/13210",
        "AcceleratorError",
        "CUDA error: out of memory\nCUDA kernel errors might be",
    ),
    (
        f"{GITHUB}/vladmandic/sdnext/issues/4801, from its second line on",
        "AcceleratorError",
        "HIP error: out of memory\nSearch for `hipErrorOutOfMemory' in https://rocm.docs.amd.com/projects/HIP/en/"
        "latest/index.html for more information.\nCUDA kernel errors might be",
    ),
    (
        f"{GITHUB}/QwenLM/Qwen3/issues/873",
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        f"{GITHUB}/ROCm/TheRock/issues/1708",
        "RuntimeError",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    ),
    (
        f"{GITHUB}/NVIDIA/nccl/issues/1235, the last line; the others of issue 1410",
        "DistBackendError",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function "
        "failed.\nLast error:\nCuda failure 'out of memory'",
    ),
    (
        f"{GITHUB}/NVIDIA/nccl/issues/962, the last line; the others of issue 1410",
        "DistBackendError",
        "NCCL error in: NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL "
        "version 2.18.1\nLast error:\nFailed to CUDA calloc 6291456 bytes",
    ),
    (
        f"{H200}: 4 TiB of pinned memory",
        "AcceleratorError",
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be",
    ),
    (
        f"{H200}: a first product on a full device",
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        f"{H200}: a first all_reduce on a full device",
        "DistBackendError",
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error (run "
        "with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call to CUDA "
        "function failed.\nLast error:\nCuda failure 'out of memory'",
    ),
]
BROKEN = [
    (
        f"{GITHUB}/vllm-project/vllm/issues/5222",
        "RuntimeError",
        "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be",
    ),
    (
        f"{GITHUB}/nv-tlabs/3dgrut/issues/191",
        "RuntimeError",
        "CUDA error: unknown error\nCUDA kernel errors might be",
    ),
    (
        f"{GITHUB}/pytorch/pytorch/issues/170045",
        "DistBackendError",
        "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 999 'unknown error'",
    ),
    (
        f"{GITHUB}/ROCm/legacy-rocm-build/issues/4021, of which the title has the first words",
        "",
        "HW Exception by GPU node-3 (Agent handle: 0x5a5c587a51c0) reason :GPU Hang",
    ),
]
DOUBTFUL = [
    (
        f"{GITHUB}/bubbliiiing/yolo3-pytorch/issues/83",
        "RuntimeError",
        "CUDA error: an illegal memory access was encountered",
    ),
    (
        f"{GITHUB}/CS1o/Stable-Diffusion-Info/issues/71",
        "AcceleratorError",
        "HIP error: unspecified launch failure\nSearch for `hipErrorLaunchFailure' in https://rocm.docs.amd.com/",
    ),
    (
        f"{GITHUB}/ROCm/legacy-rocm-build/issues/4021",
        "",
        "Memory access fault by GPU node-3 (Agent handle: 0x5a5c587a51c0) on address 0x709843600000. Reason: "
        "Write access to a read-only page.",
    ),
    (
        f"{H200}: a kernel that writes to address 16",
        "AcceleratorError",
        "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in "
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.",
    ),
]
OF_THE_PROGRAM = [
    (
        f"{GITHUB}/pykeen/pykeen/issues/236",
        "RuntimeError",
        "CUDA error: device-side assert triggered",
    ),
    (
        f"{GITHUB}/NVIDIA/nccl/issues/1410",
        "DistBackendError",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error\nLast error:\n"
        "Cuda failure 1 'invalid argument'",
    ),
    (
        f"{GITHUB}/ROCm/TheRock/issues/2707",
        "RuntimeError",
        "HIP error: invalid argument\nSearch for `hipErrorInvalidValue' in https://docs.nvidia.com/",
    ),
    (
        f"{GITHUB}/lamikr/rocm_sdk_builder/issues/228",
        "RuntimeError",
        "HIP error: no kernel image is available for execution on the device",
    ),
    (
        f"{H200}: an embedding of a token that it does not have",
        "AcceleratorError",
        "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\nCUDA kernel errors might be",
    ),
]
