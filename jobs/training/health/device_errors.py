"""What the words of CUDA's and HIP's libraries tell: want of memory, or a device that fails. Pure.

The type of such an exception tells little: torch raises ``RuntimeError``, ``AcceleratorError`` and
``DistBackendError`` for all of them. Texts of both vendors, each with its source, are in the tests. Those of
an H200 we caused ourselves.
"""

import re
from typing import Literal

Trouble = Literal["out of memory", "broken", "doubtful"]

_WORDS: dict[Trouble, re.Pattern[str]] = {
    "out of memory": re.compile(
        r"\b(CUDA|HIP)( driver)? error: out of memory|(CUDA|HIP) failure (\d+ )?'out of memory'|"
        r"\b(CU|HIP)(BLAS|SOLVER|SPARSE|FFT)_(STATUS_)?ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|"
        r"CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED|miopenStatusAllocFailed|"
        r"rocblas_status_memory_error|\bFailed to (CUDA|HIP) (host )?[cm]?alloc|"
        r"hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
        r"Triton Error \[(CUDA|HIP)\]: out of memory",
        re.IGNORECASE,
    ),
    # The device or what connects it has failed, whatever the program did.
    "broken": re.compile(
        r"uncorrectable ECC error|ECC_UNCORRECTABLE|hipErrorECCNotCorrectable|"
        r"uncorrectable NVLink error|fallen off the bus|GPU is lost|"
        r"(CUDA|HIP) error: (hardware stack error|system not yet initialized|unknown error)|"
        r"(CUDA|HIP) failure 999 |HW Exception by GPU node|"
        r"(CUDA|HIP) error: no (CUDA|ROCm)-capable device is detected|No (CUDA|HIP) GPUs are available",
        re.IGNORECASE,
    ),
    # A faulty kernel of the program does the same.
    "doubtful": re.compile(
        r"(CUDA|HIP) error: (an illegal memory access was encountered|unspecified launch failure)|"
        r"Memory access fault by GPU node|(CUDA|HIP) failure (700|719) ",
        re.IGNORECASE,
    ),
}


def trouble_of(text: str) -> Trouble | None:
    return next((trouble for trouble, words in _WORDS.items() if words.search(text)), None)


def telling_line(text: str) -> str | None:
    """The line of ``text`` by which ``trouble_of`` judges; NCCL's comes behind others."""
    if (trouble := trouble_of(text)) is None:
        return None
    return next((line.strip() for line in text.splitlines() if _WORDS[trouble].search(line)), None)
