"""Three ways to keep a training's checkpoints: plain torch DCP, Ray Train's manager, ours.

Each trains for real, and goes on from what it finds in a folder as its documentation has it done.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import ray
import ray.train
import torch
import torch.distributed.checkpoint as dcp
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tests.live.attempts import Wanted, attempt, digests_of, newest_manifest
from tests.live.trainings import recipe_for

EVERY = 4
_RUN = "run"
_NUM_WEIGHTS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """After which step a training went on, and a digest of the state that it ended with."""

    start: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """``newest`` and ``oldest`` are folders of one save each. ``payload`` is the newest's largest file, and
    ``last`` the one that its save writes last. ``index`` is the file that says which saves there are, or the
    newest such file, and ``whole_index`` all of them.
    """

    newest: Path
    oldest: Path
    payload: Path
    last: Path
    index: Path
    whole_index: Path


class System(Protocol):
    name: str

    def train(self, folder: Path, num_steps: int) -> Reached:
        """Up to step ``num_steps``, saving each ``EVERY`` steps, from the newest save in ``folder``."""

    def files(self, folder: Path) -> Files: ...


class PlainDcp:
    """A folder for each save. Which one is the newest is the user's to say: the one of the highest step."""

    name = f"torch DCP {torch.__version__}"

    def train(self, folder: Path, num_steps: int) -> Reached:
        state = _new_state()
        if saves := _in_order(folder):
            dcp.load(state, checkpoint_id=saves[-1])
        start = int(state["step"])
        for step in range(start + 1, num_steps + 1):
            _do_step(state)
            if step % EVERY == 0:
                dcp.save(state, checkpoint_id=folder / f"step-{step:03}")
        return Reached(start=start, digest=_digest_of(state))

    def files(self, folder: Path) -> Files:
        saves = _in_order(folder)
        metadata = saves[-1] / ".metadata"
        return Files(
            newest=saves[-1],
            oldest=saves[0],
            payload=_largest(saves[-1]),
            last=metadata,
            index=metadata,
            whole_index=metadata,
        )


class RayTrain:
    """Reported checkpoints of ``torch.save``, resumed by the same name and storage path."""

    name = f"Ray Train {ray.__version__}"

    def train(self, folder: Path, num_steps: int) -> Reached:
        with TemporaryDirectory(prefix="longhaul-bench-") as told:
            result = Path(told) / "reached"
            TorchTrainer(
                _reporting_loop,
                train_loop_config={"num_steps": num_steps, "result": str(result)},
                scaling_config=ScalingConfig(num_workers=1),
                run_config=RunConfig(
                    name=_RUN, storage_path=str(folder), checkpoint_config=CheckpointConfig()
                ),
            ).fit()
            return Reached(**json.loads(result.read_text()))

    def files(self, folder: Path) -> Files:
        run = folder / _RUN
        saves = _in_order(run, "checkpoint_2*")
        index = run / "checkpoint_manager_snapshot.json"
        return Files(
            newest=saves[-1],
            oldest=saves[0],
            payload=_largest(saves[-1]),
            last=saves[-1] / "step.json",
            index=index,
            whole_index=index,
        )


class Ours:
    """The core of ``longhaul train`` without Ray around it."""

    name = "Longhaul"

    def train(self, folder: Path, num_steps: int) -> Reached:
        recipe = recipe_for("ddp", world_size=1)
        story = attempt(
            Wanted(name=_RUN, recipe=recipe, num_steps=num_steps, store=folder, every_steps=EVERY)
        )
        if story.end.problem:
            raise RuntimeError(story.end.problem)
        return Reached(start=story.start.step, digest=str(digests_of(newest_manifest(folder, _RUN))))

    def files(self, folder: Path) -> Files:
        run = folder / "runs" / _RUN
        saves = _in_order(run / "gen")
        return Files(
            newest=saves[-1],
            oldest=saves[0],
            payload=_largest(saves[-1]),
            last=saves[-1] / "manifest.json",
            index=_in_order(run / "log")[-1],
            whole_index=run / "log",
        )


def _reporting_loop(config: dict[str, Any]) -> None:
    """Ray's way: what was reported last is what the next start gets."""
    state = _new_state()
    if found := ray.train.get_checkpoint():
        with found.as_directory() as folder:
            state["weights"] = torch.load(Path(folder) / "weights.pt")
            state["step"] = torch.tensor(json.loads((Path(folder) / "step.json").read_text()))
    start = int(state["step"])
    for step in range(start + 1, config["num_steps"] + 1):
        _do_step(state)
        if step % EVERY == 0:
            with TemporaryDirectory() as folder:
                torch.save(state["weights"], Path(folder) / "weights.pt")
                (Path(folder) / "step.json").write_text(str(step))
                ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))
    Path(config["result"]).write_text(json.dumps({"start": start, "digest": _digest_of(state)}))


def _new_state() -> dict[str, torch.Tensor]:
    return {"weights": torch.arange(_NUM_WEIGHTS), "step": torch.tensor(0)}


def _do_step(state: dict[str, torch.Tensor]) -> None:
    """In whole numbers, so that what is damaged once stays so."""
    state["weights"] += state["step"]
    state["step"] += 1


def _digest_of(state: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(state["weights"].numpy().tobytes()).hexdigest()


def _in_order(folder: Path, pattern: str = "*") -> list[Path]:
    """All of them have their step or the time in their names."""
    return sorted(folder.glob(pattern)) if folder.exists() else []


def _largest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_size)
