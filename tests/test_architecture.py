"""The rules of the house, held against every module; and each rule seen red on a module made up for it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import house, rays_names
from tests.house import ROOMS, ROOT, Module

OURS = house.our_modules(*ROOMS)
TESTS = house.our_modules("tests")
PACKAGES = [name for name in OURS if any(other.startswith(f"{name}.") for other in OURS)]
ENTRIES = [ROOT / "jobs" / f"{name}.py" for name in ("sweep", "train", "report")]
# Python puts a script's folder first on its path: what lies beside a script can hide any other module.
SCRIPT_FOLDERS = [ROOT / "jobs", ROOT / "cluster", ROOT / "tests", *(ROOT / "tests").glob("*/")]

Rule = Callable[[Module], list[str]]


def problems(rule: Rule, modules: dict[str, Module]) -> list[str]:
    assert modules
    return [problem for module in modules.values() for problem in rule(module)]


def test_rooms_import_only_the_rooms_below_them() -> None:
    assert problems(house.wrong_rooms, OURS | TESTS) == []


def test_folders_import_only_the_floors_below_them() -> None:
    assert problems(house.wrong_floors, OURS) == []


def test_every_floor_is_there() -> None:
    """A name that no folder has would guard nothing."""
    named = {folder for floors in house.FLOORS.values() for floor in floors for folder in floor}
    assert sorted(named - OURS.keys()) == []
    folders = {name for name in PACKAGES if name.count(".") == 1}
    assert sorted(folders - named) == []


def test_no_file_imports_itself_through_others() -> None:
    assert house.circles(OURS) == []


def test_no_folder_is_crowded() -> None:
    assert house.crowded_folders(OURS) == []


def test_every_dependency_comes_in_through_its_front_doors() -> None:
    assert problems(house.wrong_front_doors, OURS) == []


def test_rays_private_names_stand_in_their_doors_alone() -> None:
    assert problems(rays_names.outside_the_doors, OURS) == []
    assert sorted({*rays_names.DOORS, *rays_names.DOORS_OF_VARIABLES} - OURS.keys()) == []


def test_no_import_is_relative() -> None:
    assert problems(house.relative_imports, OURS | TESTS) == []


def test_every_module_begins_with_a_docstring() -> None:
    written = {name: module for name, module in TESTS.items() if module.source.strip()}
    assert problems(house.missing_docstring, OURS | written) == []


def test_every_exception_to_a_check_has_a_reason_beside_it() -> None:
    assert problems(house.unexplained_ignores, OURS | TESTS) == []


def test_only_moments_are_taken_from_the_wall_clock_never_durations() -> None:
    assert problems(house.wall_clocks, OURS) == []
    unused = [name for name in house.WALL_CLOCKS if not house.wall_clocks(Module("x", OURS[name].source))]
    assert unused == []


def test_texts_are_read_and_written_in_an_encoding_that_no_locale_changes() -> None:
    assert problems(house.unnamed_encodings, OURS) == []


def test_nothing_is_unpickled() -> None:
    assert problems(house.unpickling, OURS) == []


def test_only_the_doors_name_a_kind_of_device() -> None:
    assert problems(house.devices_named, OURS) == []
    assert set(OURS) >= set(house.DEVICE_DOORS)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_packages_docstring_names_its_files(package: str) -> None:
    assert house.files_not_listed(OURS[package], OURS) == []


@pytest.mark.parametrize(
    "name", sorted({*house.PURE, *(name for name, module in OURS.items() if house.is_called_pure(module))})
)
def test_what_is_pure_runs_on_a_bare_python(name: str) -> None:
    assert name in OURS
    assert house.loaded_with(name, OURS) == {}


@pytest.mark.parametrize(
    "name",
    [
        "jobs.sweeps.command", "jobs.execution.executor", "jobs.launch.choose", "jobs.launch.ray_executor",
        "jobs.launch.inline_executor", "jobs.sweeps.live_view", "jobs.sweeps.results",
    ],
)  # fmt: skip
def test_a_driver_that_plans_needs_neither_torch_nor_ray(name: str) -> None:
    assert not {"torch", "ray", "deepspeed"} & house.loaded_with(name, OURS).keys()


@pytest.mark.parametrize(
    "name",
    [
        "jobs.launch.ray_train.cells",
        "jobs.launch.ray_train.attempts",
        "jobs.launch.ray_train.worker",
        "jobs.launch.ray_train.heartbeat",
    ],
)
def test_a_driver_that_launches_needs_no_torch(name: str) -> None:
    """A worker's device lists and thread counts must stand before torch is loaded."""
    assert "torch" not in house.loaded_with(name, OURS)


@pytest.mark.parametrize(
    "name",
    [
        "jobs.launch.inline",
        "jobs.training.benchmark.measure",
        "jobs.training.loop.attempt",
        "jobs.training.strategies.fsdp",
    ],
)
def test_the_training_core_does_not_know_ray(name: str) -> None:
    assert "torch" in house.loaded_with(name, OURS)
    assert "ray" not in house.loaded_with(name, OURS)


def test_unit_tests_need_neither_torch_nor_ray() -> None:
    unit = [name for name in TESTS if name.startswith("tests.unit.")]
    assert unit
    loaded = {name: house.loaded_with(name, OURS | TESTS) for name in unit}
    assert {name: needs for name, needs in loaded.items() if {"torch", "ray"} & needs.keys()} == {}


def test_nothing_beside_a_script_hides_another_module() -> None:
    beside = [path for folder in SCRIPT_FOLDERS for path in folder.iterdir()]
    named = [path for path in beside if path.suffix == ".py" or path.is_dir()]
    assert [problem for path in named for problem in house.taken_name(path)] == []


@pytest.mark.parametrize("path", [path for path in ENTRIES if path.exists()], ids=lambda path: path.stem)
def test_an_entry_file_can_be_submitted_by_its_name_alone(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env -S python -P\n")
    assert house.classes(Module(path.stem, path.read_text())) == []


# Each rule, seen red.


def one(rule: Rule, name: str, source: str) -> str:
    (problem,) = rule(Module(name, source))
    return problem


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("cluster.cluster_file", "from jobs.spec_schema.sweep_spec import SweepSpec"),
        ("cluster.cluster_file", "def read():\n    import checkpointing.stores"),
        ("checkpointing.stores.local", "from reporting.results import records"),
        ("reporting.results.tables", "import checkpointing.log"),
        ("reporting.results.tables", "from checkpointing import log"),
        ("jobs.training.benchmark.measure", "from jobs.sweeps.grid import Cell"),
        ("jobs.training.loop.attempt", "from jobs.execution.messages import Heartbeat"),
        (
            "jobs.training.benchmark.measure",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jobs.spec_schema.file",
        ),
        ("jobs.sweeps.plan", "from tests.unit import builders"),
        ("tests.unit.test_plan", "from tests.live import ranks"),
    ],
)
def test_an_import_out_of_bounds_is_seen(name: str, source: str) -> None:
    assert one(house.wrong_rooms, name, source).endswith("is out of bounds here")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("reporting.results.tables", "from checkpointing.stores.contract import Store"),
        ("jobs.sweeps.plan", "from cluster.placement import place"),
        ("jobs.launch.ray_train.heartbeat", "from jobs.execution.messages import Heartbeat"),
        ("cluster.cluster_file", "import json, os.path\nfrom cluster.inventory import Node"),
    ],
)
def test_an_import_within_bounds_is_let_through(name: str, source: str) -> None:
    assert house.wrong_rooms(Module(name, source)) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("checkpointing.log.log", "from checkpointing.generations.repository import Repository"),
        ("checkpointing.stores.local", "from checkpointing import saving"),
        ("reporting.results.rows", "def late():\n    from reporting.page import document"),
        ("cluster.inventory", "import cluster.telemetry.sampler"),
        ("jobs.recovery.loop", "from jobs.launch.ray_executor import RayExecutor"),
        ("jobs.execution.executor", "from jobs.sweeps.grid import Cell"),
        ("jobs.launch.forkserver.server", "import jobs.launch.ray_train.trainer"),
        ("jobs.training.task.job", "from jobs.training.strategies import build"),
        ("jobs.training.step", "from jobs.training.loop import attempt"),
    ],
)
def test_an_import_that_goes_up_is_seen(name: str, source: str) -> None:
    assert one(house.wrong_floors, name, source).endswith("is on no lower floor (see FLOORS)")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("checkpointing.generations.audit", "from checkpointing.log.history import LogView"),
        ("checkpointing.log.codec", "from checkpointing.log.history import LogView"),
        ("jobs.recovery.loop", "from jobs.training.task.task import Task"),
        ("jobs.training.loop.attempt", "from jobs.training.step import step"),
        ("jobs.training.loop.attempt", "from checkpointing.saving.writer import Writer"),
    ],
)
def test_an_import_that_goes_down_is_let_through(name: str, source: str) -> None:
    assert house.wrong_floors(Module(name, source)) == []


@pytest.mark.parametrize("late", ["", "def late():\n    "])
def test_files_in_a_circle_are_seen(late: str) -> None:
    sources = {
        "jobs": "",
        "jobs.a": "from jobs.b import x",
        "jobs.b": "from jobs import c",
        "jobs.c": f"{late}import jobs.a",
        "jobs.d": "import jobs.a",
    }
    modules = {name: Module(name, source) for name, source in sources.items()}
    assert house.circles(modules) == [["jobs.a", "jobs.b", "jobs.c"]]
    assert house.circles({name: module for name, module in modules.items() if name != "jobs.c"}) == []


def test_a_crowded_folder_is_seen() -> None:
    modules = ["jobs", "jobs.sweeps", *(f"jobs.sweeps.m{number}" for number in range(15))]
    assert house.crowded_folders(modules) == []
    assert house.crowded_folders([*modules, "jobs.sweeps.m15"]) == [
        "jobs.sweeps: 16 modules; at most 15: give some of them a folder"
    ]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("jobs.plan", "import torch"),
        ("jobs.plan", "import torch.distributed as dist"),
        ("jobs.plan", "def late():\n    if True:\n        from ray import train"),
        ("jobs.plan", "try:\n    import deepspeed\nexcept ImportError:\n    pass"),
        ("jobs.plan", "try:\n    pass\nexcept ImportError:\n    import deepspeed"),
        ("jobs.plan", "match 1:\n    case 1:\n        import rich"),
        ("jobs.plan", "class Lazy:\n    async def late(self):\n        import yaml"),
        ("jobs.execution.board", "from ray.train import report"),
        ("cluster.placement", "import networkx"),
    ],
)
def test_a_dependency_that_comes_in_elsewhere_is_seen(name: str, source: str) -> None:
    assert "has its front doors elsewhere" in one(house.wrong_front_doors, name, source)


def test_a_front_door_is_open() -> None:
    assert house.wrong_front_doors(Module("jobs.training.strategies.ddp", "import torch")) == []
    assert house.wrong_front_doors(Module("cluster.live", "import json\nimport ray")) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from ray._private import worker", "ray._private.worker"),
        ("def late():\n    from ray import _raylet as core", "ray._raylet"),
        ("import ray._private.state", "ray._private.state"),
        ("from ray.train._internal.utils import x", "ray.train._internal.utils.x"),
        ("from ray.train.v2.api.config import x", "ray.train.v2.api.config.x"),
        ("import ray\nray._private.state.x()", "ray._private.state.x"),
        ("import ray\nray._private.worker._global_node.f().g", "ray._private.worker._global_node.f"),
        ("import ray.train as rt\nrt._internal", "ray.train._internal"),
        ("from ray import actor\nactor.ActorClass._x", "ray.actor.ActorClass._x"),
        ("import ray\nray.__ray_x__", "ray.__ray_x__"),
        ("actor.__ray_ready__.remote()", "__ray_ready__"),
        ("import ray\ngetattr(ray.train, '_internal')", "ray.train._internal"),
        ("import ray\nray.init(_temp_dir='x')", "_temp_dir="),
        ("import ray\nstart(**{}, _system_config={})", "_system_config="),
        ("import ray.actor\nray.actor.ActorClassID = None", "ray.actor.ActorClassID = ..."),
        ("from ray import train\ntrain.x: int = 1", "ray.train.x = ..."),
        ("import ray\nsetattr(ray.actor, 'x', 1)", "ray.actor.x = ..."),
        ("variables = {'RAY_TRAIN_METRICS_ENABLED': '0'}", "RAY_TRAIN_METRICS_ENABLED"),
        ("variables.update(RAY_worker_niceness='0')", "RAY_worker_niceness"),
    ],
)
def test_a_private_name_of_ray_is_seen(source: str, name: str) -> None:
    assert f": {name} is private to Ray" in one(rays_names.outside_the_doors, "jobs.plan", source)
    assert rays_names.outside_the_doors(Module("cluster.ray_internals", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import ray\nray.__version__, ray.nodes()",
        "from ray.train import RunConfig\nRunConfig(name='x')",
        "import os\nos.environ['RAY_ADDRESS']",
        "'RAY_TRAIN_METRICS_ENABLED is said in words here'",
        "import subprocess\nsubprocess._x, self._ray",
        "import ray\nself._private = ray.get(x)",
        "start(_temp_dir='x')",
    ],
)
def test_a_public_name_of_ray_is_let_through(source: str) -> None:
    assert rays_names.outside_the_doors(Module("jobs.plan", source)) == []


def test_rays_variables_may_stand_where_its_patience_is_set() -> None:
    source = "IN_TRAIN = {'RAY_TRAIN_METRICS_ENABLED': '0'}"
    assert rays_names.outside_the_doors(Module("cluster.local_ray.timeouts", source)) == []
    assert rays_names.outside_the_doors(Module("cluster.local_ray.timeouts", "import ray._private"))


def test_a_relative_import_is_seen() -> None:
    assert one(house.relative_imports, "jobs.plan", "from .grid import Cell").endswith("grid is relative")
    assert one(house.relative_imports, "jobs.plan", "from . import grid").endswith("is relative")


def test_a_module_without_a_docstring_is_seen() -> None:
    assert house.missing_docstring(Module("jobs.plan", "import os\n'''late'''"))
    assert house.missing_docstring(Module("jobs.plan", ""))


@pytest.mark.parametrize("comment", ["type: ignore", "type: ignore[misc]", "noqa", "noqa: E501, B1"])
def test_an_exception_without_a_reason_is_seen(comment: str) -> None:
    assert house.unexplained_ignores(Module("jobs.plan", f"x = 1  # {comment}"))
    assert house.unexplained_ignores(Module("jobs.plan", f"x = 1  # {comment}  # it has no stub")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\nnow = time.time()",
        "from time import time",
        "from datetime import UTC, datetime\nnow = datetime.now(UTC)",
        "import datetime\nnow = datetime.datetime.now()",
    ],
)
def test_a_look_at_the_wall_clock_is_seen(source: str) -> None:
    assert "asks the wall clock" in one(house.wall_clocks, "jobs.plan", source)
    assert house.wall_clocks(Module("jobs.plan", "import time\nstart = time.monotonic()")) == []


@pytest.mark.parametrize("call", ["Path('a').read_text()", "path.write_text(text, errors='replace')"])
def test_a_text_of_no_named_encoding_is_seen(call: str) -> None:
    assert "without encoding=" in one(house.unnamed_encodings, "jobs.plan", call)
    assert house.unnamed_encodings(Module("jobs.plan", "path.read_text(encoding='utf-8')")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist\ndist.all_gather_object(seen, own)",
        "import torch\ntorch.distributed.broadcast_object_list(box, src=0)",
        "from torch.distributed import scatter_object_list",
        "from torch.distributed import recv_object_list as receive",
        "def late():\n    import pickle",
        "from pickle import loads",
        "from ray import cloudpickle",
        "from ray.cloudpickle import loads",
        "import torch\nstate = torch.load(path)",
        "from torch import load",
    ],
)
def test_what_unpickles_is_seen(source: str) -> None:
    assert "runs what others have sent or written" in one(house.unpickling, "jobs.training.control", source)


def test_what_only_sounds_like_it_is_let_through() -> None:
    source = "import torch\ntorch.distributed.all_gather(rows, row)\nstore.put_object(name)\nimport pickling"
    assert house.unpickling(Module("jobs.training.control", source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n\ndef wait() -> None:\n    torch.cuda.synchronize()",
        "from torch.cuda import Event",
        "from torch import cuda",
        "import torch.cuda",
        "cuda = torch.cuda",
    ],
)
def test_a_kind_of_device_that_is_named_elsewhere_is_seen(source: str) -> None:
    assert "ask cluster.probe.door" in one(house.devices_named, "jobs.training.control", source)


@pytest.mark.parametrize("source", ["from torch.backends.cuda import SDPAParams", "kind = 'torch.cuda'"])
def test_what_is_no_device_may_be_named(source: str) -> None:
    assert house.devices_named(Module("jobs.training.control", source)) == []


def test_a_class_in_an_entry_file_is_seen() -> None:
    assert house.classes(Module("jobs.sweep", "def main():\n    class Inner: ..."))


@pytest.mark.parametrize("name", ["queue.py", "types.py", "ray", "torch.py", "cluster", "yaml.py"])
def test_a_name_that_hides_another_module_is_seen(name: str) -> None:
    assert house.taken_name(Path("jobs") / name)


def test_a_file_that_a_docstring_leaves_out_is_seen() -> None:
    package = Module("jobs", '"""The stories: grid, planning."""')
    assert house.files_not_listed(package, ["jobs", "jobs.grid", "jobs.plan", "jobs.training.job"]) == [
        "jobs: its docstring does not name plan",
        "jobs: its docstring does not name training",
    ]


def test_what_a_module_loads_is_followed_through_ours() -> None:
    modules = {
        name: Module(name, source)
        for name, source in {
            "jobs": "",
            "jobs.grid": "from jobs.deep import cell",
            "jobs.deep": "import yaml",
            "jobs.deep.cell": "def late():\n    import ray",
            "jobs.lazy": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jobs.grid",
        }.items()
    }
    assert house.loaded_with("jobs.grid", modules) == {"yaml": "jobs.deep"}
    assert house.loaded_with("jobs.lazy", modules) == {}
