"""Lets this process compute the same to the bit each time, or no longer asks for it (``deterministic``).

What libraries read when they first touch a device is in the worker's environment by then: see
``cluster.environment``. Without it torch refuses the first product. It never ran on several devices.
"""

import torch


def prepare(deterministic: bool) -> None:
    """Sets torch's modes for all that this process computes from here on."""
    if deterministic:
        # No kernel that is chosen by a race, and no TF32 where the image of one node turns it on.
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
        # Each new tensor would be filled with NaN, which only finds what reads memory that nobody wrote.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at run time
    # Flash and efficient attention then take backward passes that repeat, cuDNN's attention is refused, and
    # what has no such kernel raises. The call loads torch's compiler: none where nothing changes.
    if deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(deterministic)
