"""Compiling a model's blocks, or their attention: TorchInductor writes kernels for one, and all use those.

They are compiled in the first steps, for each length and for evaluation anew: a step that compiles takes
seconds or minutes. ``num_compiled`` tells whether a window had such a step.
"""

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from checkpointing.errors import Unfit
from checkpointing.stores.folders import NotOurs, private_folder

# By itself torch keeps what it compiled, to load it again, in /tmp under a name that anybody can make first.
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def prepare(device: torch.device, setting: str = "compile: block", else_: str = "compile: none") -> None:
    """Raises ``Unfit`` where nothing can be compiled for ``device``, as ``setting`` asks for."""
    if why_not := _why_not(device):
        raise Unfit(f"{setting} can't be had here: {why_not}; expected {else_}")
    from torch._inductor import config  # takes a second
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # Precompiled headers stay in /tmp whatever the variable says, and are used whoever has put them there.
    config.cpp_cache_precompile_headers = False

    # Importing it has set the variable, if the user has not.
    if os.environ.get(_FOLDER) in (None, default_cache_dir()):
        try:
            folder = Path.home().absolute() / ".cache" / "longhaul-inductor"
            with private_folder(folder, make=True):
                os.environ[_FOLDER] = str(folder)
        except (OSError, NotOurs, RuntimeError) as error:  # The last is of a user without a home.
            raise Unfit(f"{setting} needs a folder of its own ({error}); name one by {_FOLDER}") from None


def _why_not(device: torch.device) -> str | None:
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            compiler = get_cpp_compiler()
        except InvalidCxxCompiler:
            return "no C++ compiler was found"
        return None if shutil.which(compiler) else f"no C++ compiler was found ({compiler})"
    from torch.utils._triton import has_triton

    return None if has_triton() else "Triton is not installed, or doesn't know this device"


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, compiled for each shape as it comes. Its modules' weights are inputs, not constants."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def num_compiled() -> int:
    """How many graphs this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def forget() -> None:
    """The next model in this process compiles as in a fresh process."""
    if compiled.cache_info().currsize:
        torch._dynamo.reset()
        compiled.cache_clear()
