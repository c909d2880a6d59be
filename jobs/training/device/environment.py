"""Collects what a run's numbers depend on besides its recipe: versions, device, device driver, variables."""

import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from cluster.probe import door
from cluster.probe.meeting import ON_LOOPBACK
from jobs.training.device.rank_device import platform_of
from jobs.training.task.measurement import Environment
from reporting.results.redaction import is_secret, without_credentials

_PACKAGES = (
    "ray", "deepspeed", "torchao", "numpy", "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm",
    "flash-attn", "transformer-engine", "apex", "aiter", "amd-aiter", "xformers", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas",
)  # fmt: skip
# The beginnings of their names: of the devices' runtimes and libraries, collectives and their networks,
# compilers, and the host's threads and memory.
_RELEVANT = re.compile(
    r"(NCCL|RCCL|MSCCL|MSCCLPP|NVSHMEM|HSA|HIP|ROCR|ROCM|AMD|GPU|CUDA|CUDNN|CUBLAS|CUBLASLT|NVTE|NVIDIA"
    r"|HIPBLAS|HIPBLASLT|ROCBLAS|TENSILE|MIOPEN|AITER|AOTRITON|FLASH|FLASH_ATTENTION|TRITON|TORCH"
    r"|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|DS|GLOO|UCX|FI|IBV|MLX5|OMP|GOMP|KMP|MKL|DNNL|ONEDNN|OPENBLAS"
    r"|MALLOC)_[A-Z0-9_]+|LD_PRELOAD|MALLOC_CONF"
)
# A row has room for the variables that people set, not for all that a login shell exports.
_MAX_VARIABLES, _MAX_VALUE_CHARS = 40, 200


def environment_of(device: torch.device, fingerprint: Mapping[str, str]) -> Environment:
    return Environment(
        platform=platform_of(device),
        python=platform.python_version(),
        # A plain text: torch's own type of it would load torch in whoever reads it, the driver and the board.
        torch=str(torch.__version__),
        packages={name: found for name in _PACKAGES if (found := _version(name))},
        driver=_driver(device),
        collectives=door.collective_library(device),
        device=door.name_of(device),
        variables=relevant_variables(os.environ),
        fingerprint=dict(fingerprint),
    )


def relevant_variables(variables: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """The variables that change how training runs, at most 40 of 200 letters each; no secrets."""
    names = [name for name in sorted(variables) if _is_relevant(name)]
    # Longhaul sets these itself if all ranks are on one machine, so they say nothing about the user's setup.
    names = [name for name in names if ON_LOOPBACK.get(name) != variables[name]]
    return {name: without_credentials(variables[name])[:_MAX_VALUE_CHARS] for name in names[:_MAX_VARIABLES]}


def _is_relevant(name: str) -> bool:
    # Where a compiler keeps its files says nothing about how fast they run.
    return bool(_RELEVANT.fullmatch(name)) and not name.endswith("_CACHE_DIR") and not is_secret(name)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver(device: torch.device) -> str | None:
    if platform_of(device) == "rocm":
        return f"hip {torch.version.hip}"
    if platform_of(device) == "cuda":
        return _nvidia_driver()
    return None


def _nvidia_driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
