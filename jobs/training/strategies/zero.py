"""DeepSpeed's ZeRO: stage 1 slices the moments, stage 2 also the gradients, stage 3 also the parameters.

This is the only module that imports DeepSpeed. It also undoes the changes that DeepSpeed makes to a process.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from checkpointing.saving.snapshot import Piece
from cluster.probe import door
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill, materialize, unfilled
from jobs.training.precision import COMPUTE_DTYPE
from jobs.training.strategies import state, zero_state
from jobs.training.strategies.contract import Counters, Footprint, See, weighted
from jobs.training.strategies.memory import moments, release_memory, storage_bytes
from jobs.training.strategies.optimizer import adamw, schedule
from jobs.training.task.job import Recipe

# The imports below read it; without it DeepSpeed warns that it found no accelerator. A process that workers
# are forked from has it set: there the question itself would take the device away from all of them.
if "DS_ACCELERATOR" not in os.environ and not door.is_there():
    os.environ["DS_ACCELERATOR"] = "cpu"


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Inside, a module cannot be imported."""
    before = sys.modules.pop(name, None)
    sys.modules[name] = None  # type: ignore[assignment]  # as ``import`` itself marks what must not be found
    try:
        yield
    finally:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Inside, ``torch.compile`` leaves a function as it is."""
    before = torch.compile
    torch.compile = _as_it_is  # type: ignore[assignment]  # for functions, not for models
    try:
        yield
    finally:
        torch.compile = before


def _as_it_is(function: Any = None, **_: Any) -> Any:
    return function or _as_it_is


# Else DeepSpeed opens NVML as it loads, only to ask later for free memory, which torch tells as well.
with _hidden("pynvml"):
    import deepspeed
    from deepspeed.runtime.zero import parameter_offload
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

# Each engine imports an optimizer that no recipe has, to see whether it is the one. That one's functions are
# compiled as they are defined, for which torch would load its compiler: seconds in each process of workers.
with _nothing_compiled(), suppress(ImportError):
    import_module("deepspeed.runtime.zero.muon.muon_optimizer")

_LINEAR = nn.functional.linear

# DeepSpeed's default sizes suit models of about 8 billion parameters.
_USUAL_NUM_PARAMETERS = 8_000_000_000


def build(recipe: Recipe, device: torch.device) -> "ZeroEngine":
    """An engine of the recipe's stage. If building fails, DeepSpeed's changes to the process are undone."""
    _prepare_process(device)
    try:
        return ZeroEngine(_initialize(recipe, device))
    except BaseException:
        _restore_process()
        raise


def configuration(recipe: Recipe) -> dict[str, Any]:
    """DeepSpeed's configuration: the recipe, fp32 for all sums, and DeepSpeed's defaults otherwise.

    Default sizes that count parameters shrink with the model: otherwise a small model would never be sliced
    or released.
    """
    share = min(1.0, recipe.model.num_parameters / _USUAL_NUM_PARAMETERS)
    sizes = {
        "reduce_bucket_size": 5e8,
        "allgather_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
    }
    return {
        "train_micro_batch_size_per_gpu": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_clipping": recipe.optimizer.clip_norm,
        "bf16": {"enabled": recipe.precision == "bf16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": int(recipe.strategy.removeprefix("zero")),
            # DeepSpeed asserts that these numbers are even.
            **{name: 2 * round(size * share / 2) for name, size in sizes.items()},
            # Vectors stay whole and matrices are sliced, as the default does for large models.
            "stage3_param_persistence_threshold": max(recipe.model.hidden_size, recipe.model.attention_size),
            **({"offload_optimizer": {"device": "cpu"}} if recipe.offload == "optimizer" else {}),
        },
        # Else DeepSpeed wants its own AdamW for host memory, which it compiles.
        "zero_force_ds_cpu_optimizer": False,
        # The throughput timer would wait for the device at every micro-batch.
        "timers": {"throughput": {"enabled": False}},
    }


def _initialize(recipe: Recipe, device: torch.device) -> Any:
    config = configuration(recipe)
    decoder = unfilled(recipe, COMPUTE_DTYPE[recipe.precision]).to(COMPUTE_DTYPE[recipe.precision])
    if recipe.strategy == "zero3":
        _materialize_slices(decoder, recipe, device, config)
    else:
        materialize(decoder, device, seed=recipe.seed, precision=recipe.precision)
    optimizer = adamw(decoder.parameters(), recipe.optimizer)
    with redirect_stdout(sys.stderr):  # DeepSpeed's bf16 optimizer prints to stdout.
        engine, *_ = deepspeed.initialize(
            model=decoder,
            optimizer=optimizer,
            lr_scheduler=schedule(optimizer, recipe.optimizer),
            config=config,
            dist_init_required=False,
        )
    return engine


def _materialize_slices(
    decoder: Decoder, recipe: Recipe, device: torch.device, config: dict[str, Any]
) -> None:
    """Fills and slices one module at a time, so that no rank ever holds more than one whole weight matrix."""
    for path, module in decoder.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        module.to_empty(device=device, recurse=False)
        for name, parameter in module.named_parameters(recurse=False):
            fill(
                f"{path}.{name}",
                parameter,
                seed=recipe.seed,
                precision=recipe.precision,
                std=recipe.model.init_std,
            )
        deepspeed.zero.Init(module=module, config_dict_or_path=config)


class ZeroEngine:
    """See ``Engine``. In fp32 DeepSpeed keeps masters too, although the parameters could serve as masters.

    In bf16, gradients are summed up in fp32, over micro-batches and over ranks. Stage 2 first divides them by
    the number of ranks, in bf16; that is exact only if the number is a power of two.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def accumulate(self, *batch: Tensor, last: bool, weight: float = 1.0) -> Tensor:
        loss = weighted(self._engine(*batch), weight)
        self._engine.backward(loss)
        if not last:
            self._engine.step()  # Here DeepSpeed only counts the micro-batch.
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, *batch: Tensor) -> Tensor:
        self._engine.eval()
        loss: Tensor = self._engine(*batch)
        self._engine.train()
        return loss

    def recompute(self, *batch: Tensor, see: See) -> None:
        """Holds all gradients at once for a moment, whole and in the precision of the parameters."""
        parameters = dict(state.decoder_parameters(self._engine.module))
        if not self._engine.zero_optimization_partition_weights():
            for name, parameter in parameters.items():
                see(f"parameters/{name}", parameter)
        loss = self._engine.module(*batch)
        # No ``backward``: DeepSpeed would reduce the gradients, and count a micro-batch.
        found = torch.autograd.grad(loss, [*parameters.values()])
        see("loss", loss.detach())
        for name, gradient in zip(parameters, found, strict=True):
            see(f"gradients/{name}", gradient)

    def update(self) -> None:
        self._engine.step()

    @property
    def learning_rate(self) -> float:
        return float(self._engine.get_lr()[0])

    @property
    def grad_norm(self) -> Tensor | None:
        norm = self._engine.get_global_grad_norm()
        return None if norm is None else torch.as_tensor(norm)

    @property
    def num_skipped_updates(self) -> int:
        return int(self._engine.skipped_steps)

    def pieces(self) -> list[Piece]:
        return zero_state.pieces(self._engine)

    @property
    def holds(self) -> Sequence[int]:
        return (dist.get_rank(),)

    def pieces_of(self, rank: int) -> list[Piece]:
        return self.pieces()

    def targets(self) -> list[Piece]:
        return self.pieces()

    def counters(self) -> Counters:
        return state.counters(self._engine.lr_scheduler, self.num_skipped_updates)

    def restored(self, counters: Counters) -> None:
        state.restore_counters(self._engine.optimizer.optimizer, self._engine.lr_scheduler, counters)
        self._engine.skipped_steps = counters.num_skipped_updates
        zero_state.derive_parameters(self._engine)

    def footprint(self) -> Footprint:
        parameters = list(_parameters(self._engine))
        masters = storage_bytes(parameters + zero_state.masters(self._engine)) - storage_bytes(parameters)
        gradients = storage_bytes(_gradients(self._engine))
        in_moments = storage_bytes(moments(self._engine.optimizer.optimizer))
        return Footprint(
            parameters=storage_bytes(parameters),
            masters=masters,
            gradients=gradients,
            moments=in_moments,
            offloaded=masters + gradients + in_moments if self._engine.zero_use_cpu_optimizer() else 0,
        )

    def close(self) -> None:
        try:
            self._engine.destroy()
        finally:
            del self._engine
            _restore_process()
            release_memory()


# Attributes in which DeepSpeed's optimizers keep gradients: stage 1 (another one in bf16), stages 2 and 3.
_GRADIENTS = (
    "averaged_gradients",
    "all_grad_tensors",
    "fp32_groups_gradients_flat",
    "grad_partitions_flat_buffer",
)


def _parameters(engine: Any) -> Iterator[Tensor]:
    """The parameters that are whole now and, under stage 3, this rank's slices."""
    for parameter in engine.module.parameters():
        yield parameter.data
        if hasattr(parameter, "ds_tensor"):
            yield parameter.ds_tensor


def _gradients(engine: Any) -> Iterator[Tensor]:
    for parameter in engine.module.parameters():
        yield from _held(parameter, ("grad", "grad_accum"))
    yield from _held(engine.optimizer, _GRADIENTS)
    for master in zero_state.masters(engine):
        yield from _held(master, ("grad",))


def _held(owner: object, names: tuple[str, ...]) -> Iterator[Tensor]:
    for name in names:
        yield from _tensors_in(getattr(owner, name, None))


def _tensors_in(value: object) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case dict():
            for item in value.values():
                yield from _tensors_in(item)
        case list():
            for item in value:
                yield from _tensors_in(item)


def _prepare_process(device: torch.device) -> None:
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # DeepSpeed picks the device by this.
    if device.type == "cpu":
        # Else DeepSpeed compiles shared-memory collectives for 25 s; a benchmark measures gloo's.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # Else stage 3 starts a process at every reduction to count NUMA nodes.
        os.environ["LOCAL_SIZE"] = "1"
    for handler in deepspeed.utils.logger.handlers:
        handler.setStream(sys.stderr)  # DeepSpeed logs to stdout, where results go.
    # Else this warning comes at every collective.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)


def _restore_process() -> None:
    """Undoes DeepSpeed's global changes: else later engines are slower and this engine's memory is kept."""
    nn.functional.linear = _LINEAR
    parameter_offload.FWD_MODULE_STACK.clear()
    # An unbounded cache on a method keeps every coordinator, and so every stage 3 model.
    plans = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    for cell in plans.__closure__:
        if hasattr(cell.cell_contents, "cache_clear"):
            cell.cell_contents.cache_clear()
