"""The errors of a run inside a worker, and the failure that an exception leaves in the run's row."""

import errno
import re
import traceback
from typing import get_args

import torch

from cluster.probe.roll_call import Unmet
from jobs.training.health.device_errors import telling_line, trouble_of
from jobs.training.task.context import Phase
from jobs.training.task.measurement import BadLoss, Corruption, Failure, Status
from jobs.training.task.token_index import DataError


class AgreedFailure(Exception):
    """An error that every rank raises at the same point, so the process group can still be used."""


class InvalidLoss(AgreedFailure):
    """The loss is not finite, or far above earlier losses. In a long run ``bad_loss`` says at which steps."""

    def __init__(self, text: str, bad_loss: BadLoss | None = None) -> None:
        super().__init__(text)
        self.bad_loss = bad_loss


class Corrupted(AgreedFailure):
    """``ranks`` do not compute as the others do; empty where nobody knows who is at fault."""

    def __init__(self, text: str, *, ranks: tuple[int, ...], corruption: Corruption) -> None:
        super().__init__(text)
        self.ranks = ranks
        self.corruption = corruption


class HandOverRefused(AgreedFailure):
    """The ranks do not compute the losses that another group left with the checkpoint."""


class DeviceMismatch(AgreedFailure):
    """The ranks do not have distinct devices of the group's vendor."""


class NothingFits(AgreedFailure):
    """Not even the smallest micro-batch fits in memory. ``wanted_bytes`` is what it could not have."""

    def __init__(self, text: str, wanted_bytes: int | None) -> None:
        super().__init__(text)
        self.wanted_bytes = wanted_bytes


_CPU_ALLOCATION = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_DEVICE_ALLOCATION = re.compile(r"[Tt]ried to allocate ([\d.]+) ([KMG]iB|bytes)")
# From the call that pins down to where torch raises.
_NEAR_FRAMES = 3
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def failure_of(error: BaseException, phase: str, rank: int) -> Failure:
    """The failure that ``error`` leaves in the run's row; ``phase`` is the phase in which the rank was."""
    status = _status_of(error)
    return Failure(
        status=status,
        reason=_first_line(error),
        phase=phase if phase in get_args(Phase) else None,
        wanted_bytes=wanted_bytes(error) if status == "oom" else None,
        ranks=error.ranks if isinstance(error, Unmet | Corrupted) else (rank,),
        bad_loss=error.bad_loss if isinstance(error, InvalidLoss) else None,
        corruption=error.corruption if isinstance(error, Corrupted) else None,
        is_hand_over_refused=isinstance(error, HandOverRefused),
    )


def is_out_of_memory(error: BaseException) -> bool:
    return _status_of(error) == "oom"


def _status_of(error: BaseException) -> Status:
    match error:
        case NothingFits():
            return "oom"
        case InvalidLoss():
            return "invalid_loss"
        case DeviceMismatch():
            return "device_mismatch"
        case Unmet():
            return "hang"
        case torch.OutOfMemoryError() | MemoryError():
            return "oom"
        case OSError(errno=errno.ENOMEM):
            return "oom"
        case RuntimeError() if _CPU_ALLOCATION.search(str(error)) or _is_of_device(error):
            return "oom"
        case _:
            return "crash"


def _is_of_device(error: BaseException) -> bool:
    return trouble_of(str(error)) == "out of memory"


def wanted_bytes(error: BaseException) -> int | None:
    """The size of the allocation that failed with ``error``, if its text tells."""
    if isinstance(error, NothingFits):
        return error.wanted_bytes
    message = str(error)
    if found := _CPU_ALLOCATION.search(message):
        return int(found[1])
    if found := _DEVICE_ALLOCATION.search(message):
        return round(float(found[1]) * _UNITS[found[2]])
    return None


def _first_line(error: BaseException) -> str:
    """The message of Longhaul's own errors; of others the type too, which often says more than the text."""
    if isinstance(error, AgreedFailure | DataError | Unmet):
        return str(error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    line = telling_line(str(error)) or text
    parts = [type(error).__name__, text, line if line != text else "", _whose_memory(error)]
    return ": ".join(part for part in parts if part)


def _whose_memory(error: BaseException) -> str:
    """CUDA and HIP have the same words for a device's memory and for pinned memory of the host."""
    if not isinstance(error, RuntimeError) or not _is_of_device(error):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    is_pinned = any("pin_memory" in f"{frame.name} {frame.line}" for frame in frames[-_NEAR_FRAMES:])
    return "no more pinned memory of the host" if is_pinned else "no more memory of the device"
