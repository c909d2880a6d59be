"""What we rely on of Ray's private names, held against the Ray that is installed: a new one fails here first.

It needs no cluster. What fails says which name it is, and which function of ours must be looked at.
"""

import mmap
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
import ray
from ray import _raylet
from ray._private import services, state

from tests import house, rays_names
from tests.house import Module
from tests.live.relied_names import CALLBACK, NAMES, RAY, TRAIN, Relied


@pytest.mark.parametrize("relied", NAMES, ids=lambda relied: f"{relied.name}, for {relied.by}")
def test_ray_is_as_we_rely_on(relied: Relied) -> None:
    assert relied.problem == ""


@pytest.mark.parametrize("by", sorted({relied.by for relied in NAMES}))
def test_who_relies_on_it_is_there(by: str) -> None:
    resolve_name(by)


def test_the_core_knows_the_option_that_starts_no_worker_ahead() -> None:
    with (
        Path(_raylet.__file__).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as core,
    ):
        assert core.find(b"prestart_worker_first_driver") >= 0, (
            f"Ray {ray.__version__}: its core has no prestart_worker_first_driver any more; "
            f"{RAY}.start_options and cluster.local_ray.simulated rely on it"
        )
        assert core.find(b"prestart_worker_first_driver_x") < 0


def not_listed(module: Module) -> list[str]:
    """Private names that a door uses and nobody holds against a new Ray."""
    used = [name.removesuffix(" = ...") for _, name in rays_names.names_in(module)]
    used += [name for _, name in rays_names.variables_in(module)]
    return sorted({name for name in used if not any(_covers(relied, name) for relied in NAMES)})


def _covers(relied: Relied, name: str) -> bool:
    """Its own entry, or that of an attribute of it; a method of any actor stands in Ray's source."""
    is_it = f"{relied.name}.".startswith(f"{name}.") or relied.value == name
    is_option = relied.name == f"ray._raylet.Config.{name.removeprefix('RAY_')}"
    is_magic = name.startswith("__ray_") and any(name in words for words in relied.says)
    is_of_node = name.startswith("ray._private.worker._global_node.") and relied.name.endswith(
        f".Node.{name.rpartition('.')[2]}"
    )
    return is_it or is_option or is_magic or is_of_node


@pytest.mark.parametrize("door", [*rays_names.DOORS, *rays_names.DOORS_OF_VARIABLES])
def test_every_private_name_in_a_door_is_listed(door: str) -> None:
    module = house.our_modules(*house.ROOMS)[door]
    assert rays_names.names_in(module) or rays_names.variables_in(module)
    assert not_listed(module) == []


# Each of it, seen red.


def of(name: str) -> Relied:
    return next(relied for relied in NAMES if relied.name == name)


def test_a_name_that_is_gone_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(state, "available_resources_per_node")
    assert of("ray._private.state.available_resources_per_node").problem == (
        f"Ray {ray.__version__}: ray._private.state.available_resources_per_node is not there any more; "
        "cluster.ray_internals.free_resources relies on it"
    )


def test_a_module_that_is_gone_is_told_by_name() -> None:
    gone = Relied(name="ray.train._gone.utils.x", by="ours")
    assert (
        gone.problem
        == f"Ray {ray.__version__}: ray.train._gone.utils.x is not there any more; ours relies on it"
    )


@pytest.mark.parametrize("new", [lambda: None, lambda addr, temp_dir: None, lambda *, addr: None])
def test_a_call_that_is_refused_is_seen(monkeypatch: pytest.MonkeyPatch, new: object) -> None:
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", new)
    assert "can't be called as before" in of("ray._private.services.canonicalize_bootstrap_address").problem


def test_a_keyword_that_is_refused_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = SimpleNamespace(create=lambda address, cluster, *, allow_cluster_id_nil: None)
    monkeypatch.setattr(_raylet, "GcsClientOptions", renamed)
    assert "fetch_cluster_id_if_nil" in of("ray._raylet.GcsClientOptions.create").problem


def test_a_hook_that_is_called_otherwise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{CALLBACK}.ControllerCallback.after_controller_start"
    hooks = resolve_name(f"{CALLBACK}.ControllerCallback")
    monkeypatch.setattr(hooks, "after_controller_start", lambda self: None)
    assert f"takes (self), not as {TRAIN}.GroupWatcher.after_controller_start does" in of(name).problem


def test_a_value_that_is_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = resolve_name("ray._private.ray_constants")
    monkeypatch.setattr(constants, "RAY_WORKER_NICENESS", "RAY_NICENESS")
    assert "is 'RAY_NICENESS', expected 'RAY_worker_niceness'" in (
        of("ray._private.ray_constants.RAY_WORKER_NICENESS").problem
    )


def test_a_source_that_does_otherwise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_name("ray._private.worker"), "connect", lambda: None)
    assert "does not say 'target=listen_error_messages' any more" in of("ray._private.worker.connect").problem


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from ray._private.state import node_ids", "ray._private.state.node_ids"),
        ("import ray\nray._private.worker._global_node.kill()", "ray._private.worker._global_node.kill"),
        ("actor.__ray_call__.remote()", "__ray_call__"),
        ("variables = {'RAY_TRAIN_CALLBACKS': ''}", "RAY_TRAIN_CALLBACKS"),
        ("import ray.actor\nray.actor.exit_actor = None", "ray.actor.exit_actor"),
    ],
)
def test_a_name_that_is_not_listed_is_seen(source: str, name: str) -> None:
    assert not_listed(Module(RAY, source)) == [name]
