"""Causes are what else differed between two sides, the likeliest reason for another speed first. Pure.

The order is a judgement, not a measurement: how it was measured, which device and how much power, which
kernels ran, the libraries of matrix products, of attention and of collectives, links, drivers, the host.
"""

import re
from collections.abc import Iterable

from reporting.analysis.findings import Difference

# Beginnings of names, from the likeliest to the least likely; what fits nowhere comes last. Blanks divide
# them, and an underline is a blank in a name.
_ORDER = tuple(
    re.compile("|".join(patterns.split()).replace("_", " "))
    for patterns in (
        "simulated imported timing_unit sync isolation spread steps warmup_rule parameters",
        "vendor device_name platform device_memory compute_partition memory_partition MIG",
        "power_cap highest_clock performance_level persistence_mode ECC",
        "attention_kernel attention_library attention_allowed matrix_library matrix_precision TF32 "
        "bf16_reductions TunableOp cudnn_benchmark deterministic allocator",
        "variable_(CUBLAS|HIPBLAS|ROCBLAS|TENSILE|TORCH|PYTORCH|NVTE|NVIDIA|AITER|AOTRITON|FLASH|TRITON) "
        "variable_(CUDNN|MIOPEN)",
        "torch$ torch_commit cudnn lib(cublas|hipblas|rocblas|cudnn|MIOpen|aotriton|torch) "
        "package_(triton|pytorch-triton|flash|transformer|apex|aiter|amd-aiter|xformers|torchao|nvidia-cu)",
        "collectives lib(nccl|rccl|nvshmem) package_(nvidia-nccl|deepspeed) "
        "variable_(NCCL|RCCL|MSCCL|NVSHMEM)",
        "NVLink xGMI PCIe fabric variable_(UCX|FI|IBV|MLX5|GLOO) lib(ucp|fabric|ibverbs)",
        "driver device_(driver|firmware|BIOS) amdgpu ROCm lib(cudart|amdhip|hsa|nvrtc|hiprtc)",
        "variable_(HSA|HIP|ROCR|ROCM|AMD|GPU|CUDA)",
        "processor cores core_quota threads SMT CPU NUMA huge_pages lib(gomp|iomp|omp|mkl|openblas|c$) "
        "lib(jemalloc|tcmalloc) variable_(OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS|LD.PRELOAD|MALLOC)",
        "image container OS machine kernel boot_options",
    )
)


def likeliest_first(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Orders differences by how likely they are to be the reason, equally likely ones by name."""
    return tuple(sorted(differences, key=lambda one: (_place(one.what), one.what)))


def _place(what: str) -> int:
    found = (place for place, pattern in enumerate(_ORDER) if pattern.match(what))
    return next(found, len(_ORDER))
