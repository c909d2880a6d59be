"""Has each function of MKL computed once by one thread, before several compute it together.

MKL chooses how it computes a function at its first call. In the version in torch's builds, where several
threads make that call together, one of them may compute its share with half of the digits
(https://github.com/pytorch/pytorch/issues/188792): a training's cosines were wrong by 1e-4 that way, for as
long as the process lived. A model does it at its first forward pass, before any optimizer computes.
"""

from functools import cache

import torch

_FUNCTIONS = (
    torch.acos, torch.asin, torch.atan, torch.cos, torch.cosh, torch.erf, torch.erfc, torch.erfinv,
    torch.exp, torch.expm1, torch.log, torch.log10, torch.log1p, torch.log2, torch.sin, torch.sinh,
    torch.sqrt, torch.tan, torch.tanh,
)  # fmt: skip


@cache
def call_each_once() -> None:
    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype, device="cpu")
        for function in _FUNCTIONS:
            function(one)
