"""A device's clock beside the host's, a measured cell, and what a device tells of itself."""

from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import torch

from cluster.telemetry.amd_smi import open_amd_smi
from cluster.telemetry.nvml import open_nvml
from cluster.telemetry.readings import DeviceAddress, Nothing, Reading, Telemetry
from jobs.sweeps.memory_forecast import predict_memory
from jobs.training.benchmark.measure import measure
from jobs.training.benchmark.timing import DeviceTimer, HostTimer
from jobs.training.data.synthetic import make_batches
from jobs.training.step import train_step
from jobs.training.strategies.build import build
from jobs.training.task.context import Context
from jobs.training.task.job import Job, Recipe, Window
from jobs.training.task.measurement import Measurement
from jobs.training.task.presets import preset
from tests.gpu.here import vendor_of, wait_for
from tests.gpu.trainings import PLAIN

_WARMUP, _NUM_TIMED = 5, 30
# Larger first: the forecast of a small one is mostly what a context takes.
_MODELS = ("llama-3.2-1b", "llama-mini")
_SHARE_OF_MEMORY = 0.7
ALL_READINGS = frozenset(asdict(Reading()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The seconds of one window of ``num_steps`` steps, by both clocks."""

    num_steps: int
    by_events_s: float
    by_host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """``values`` are a device's readings by name; ``refused`` are the questions that raised, with the error.

    ``nothing`` is why there is no telemetry.
    """

    values: dict[str, Any]
    refused: dict[str, str]
    nothing: str | None = None

    @property
    def missing(self) -> list[str]:
        return [name for name, value in self.values.items() if value is None]


def larger_recipe(memory_bytes: int) -> Recipe:
    """A training that needs a good part of a device with that much memory, but fits."""
    recipes = [
        replace(PLAIN, model=preset(name), precision="bf16", seq_len=2048, micro_batch=1, grad_accum=1)
        for name in _MODELS
    ]
    bound = _SHARE_OF_MEMORY * memory_bytes
    fitting = [one for one in recipes if predict_memory(one, on_cpu=False).total < bound]
    return fitting[0] if fitting else recipes[-1]


def times(recipe: Recipe, device: torch.device) -> Times:
    """Steps one behind the other, without a wait in between, as in a window that counts."""
    engine = build(recipe, device)
    batches = make_batches(recipe, 0, device)
    timer = HostTimer() if device.type == "cpu" else DeviceTimer(device)
    for step in range(_WARMUP):
        train_step(engine, batches.load(step))
    wait_for(device)
    started = perf_counter()
    timer.mark()
    for step in range(_NUM_TIMED):
        train_step(engine, batches.load(step))
        timer.mark()
    wait_for(device)
    by_host_s = perf_counter() - started
    by_events_s = sum(timer.step_times_s())
    engine.close()
    return Times(num_steps=_NUM_TIMED, by_events_s=by_events_s, by_host_s=by_host_s)


def cell(recipe: Recipe, num_steps: int, device: torch.device) -> Measurement:
    """As a sweep measures it."""
    job = Job(run_id="gpu", recipe=recipe, window=Window(steps=num_steps, warmup=5), vendor=vendor_of(device))
    context = Context(rank=0, world_size=1, local_rank=0, device=device)
    found = measure(job, context)
    assert found is not None
    return found


def readings(device: torch.device) -> Told:
    """One reading while the device works."""
    product = torch.ones(4096, 4096, device=device)
    for _ in range(50):
        product = product @ product * 0.0 + 1.0
    address = DeviceAddress.of(torch.cuda.get_device_properties(device))
    try:
        library = _library()
    except Exception as error:
        return Told(values={}, refused={}, nothing=f"{type(error).__name__}: {error}")
    return told_by(library, address, is_amd=bool(torch.version.hip))


def told_by(library: Any, address: DeviceAddress, *, is_amd: bool) -> Told:
    asking = Asking(library)
    telemetry: Telemetry = (open_amd_smi if is_amd else open_nvml)(asking, address)
    nothing = telemetry.reason if isinstance(telemetry, Nothing) else None
    return Told(values=asdict(telemetry.read()), refused=asking.refused, nothing=nothing)


def _library() -> Any:
    if torch.version.hip:
        import amdsmi

        amdsmi.amdsmi_init()
        return amdsmi
    import pynvml

    pynvml.nvmlInit()
    return pynvml


class Asking:
    """A vendor's library that remembers what it refused, and why."""

    def __init__(self, library: Any) -> None:
        self.refused: dict[str, str] = {}
        self._library = library

    def __getattr__(self, name: str) -> Any:
        try:
            found = getattr(self._library, name)
        except AttributeError:
            self.refused[name] = "this version does not know it"
            raise
        if isinstance(found, type) or not callable(found):
            return found

        def ask(*args: Any) -> Any:
            try:
                return found(*args)
            except Exception as error:
                self.refused[name] = f"{type(error).__name__}: {error}"
                raise

        return ask
