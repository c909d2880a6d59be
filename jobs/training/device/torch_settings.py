"""What torch itself has chosen or was told: its build, its libraries, its modes."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch


def torch_facts(device: torch.device) -> dict[str, str]:
    """Facts by name. What this build of torch doesn't know is left out."""
    facts = {name: _told(ask) for name, ask in (*_of_all(), *(_of_devices() if device.type != "cpu" else ()))}
    return {name: value for name, value in facts.items() if value}


def _of_all() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "torch commit", lambda: torch.version.git_version[:12]
    yield "CPU kernels", torch.backends.cpu.get_cpu_capability
    yield "CPU libraries", _cpu_libraries
    yield "threads", torch.get_num_threads
    yield "matrix precision", torch.get_float32_matmul_precision
    yield "deterministic", torch.are_deterministic_algorithms_enabled
    yield "attention allowed", _attention


def _of_devices() -> Iterator[tuple[str, Callable[[], Any]]]:
    """``cudnn`` means MIOpen on AMD's devices, as everywhere in torch."""
    yield "cudnn", torch.backends.cudnn.version
    yield "cudnn benchmark", lambda: torch.backends.cudnn.benchmark
    yield "matrix library", lambda: _last_word(torch.backends.cuda.preferred_blas_library())
    yield "attention library", lambda: _last_word(torch.backends.cuda.preferred_rocm_fa_library())
    yield "TF32", lambda: torch.backends.cuda.matmul.allow_tf32
    yield (
        "bf16 reductions",
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    )
    yield "TunableOp", torch.cuda.tunable.is_enabled
    yield "allocator", torch.cuda.get_allocator_backend


def _told(ask: Callable[[], Any]) -> str:
    """The answer as text; empty if this build has none, whatever it raises instead."""
    try:
        answer = ask()
    except Exception:
        return ""
    if isinstance(answer, bool):
        return "on" if answer else "off"
    return "" if answer is None else str(answer)


def _cpu_libraries() -> str:
    text = torch.__config__.show()
    found = {
        "MKL": re.search(r"Math Kernel Library Version ([\d.]+)", text),
        "oneDNN": re.search(r"MKL-DNN v([\d.]+)", text),
    }
    return ", ".join(f"{name} {version[1]}" for name, version in found.items() if version)


def _attention() -> str:
    allowed = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
    }
    return ", ".join(name for name, is_allowed in allowed.items() if is_allowed)


def _last_word(name: Any) -> str:
    """``Cublaslt`` of ``_BlasBackend.Cublaslt``."""
    return str(name).rpartition(".")[2]
