"""The door to the private names of Ray itself, each behind a function that says what it promises.

Ray may change them in any version: ``tests/live/machines/test_ray_internals.py`` lists every one and fails by
name. Those of Ray Train's trainer and controller stand in ``jobs.launch.ray_train.train_internals``. Ray is
imported when a function needs it, so that a bare Python can read this file.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTables:
    """What a head knows of its nodes: Ray's table, with the dead ones; the ids of those that are being
    drained; and when each node started, by its id.
    """

    nodes: tuple[dict[str, Any], ...]
    draining: frozenset[str]
    started_ms: dict[str, int]


def draining_nodes() -> frozenset[str]:
    """The ids of nodes that take nothing new and end soon, asked of the head that we are connected to."""
    import ray

    return frozenset(ray._private.state.state.get_draining_nodes())


def free_resources() -> dict[str, dict[str, float]]:
    """By the id of each node that is alive, how much of each resource nobody has claimed; what is all claimed
    may be missing. Asks the head that we are connected to, which hears of changes with a delay.
    """
    import ray

    free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    return free


def head_address(address: str) -> str:
    """``host:port`` of the cluster that ``address`` means to Ray, "auto" for one; asks nobody."""
    from ray._private.services import canonicalize_bootstrap_address

    return canonicalize_bootstrap_address(address) or address


def tables_of(head: str) -> HeadTables:
    """Asks the head at ``host:port`` without becoming a driver: no job is registered, no worker started.

    Whatever goes wrong is an exception of some kind, unless nobody listens there: then Ray ends this process
    after a minute.
    """
    from ray._private.state import GlobalState
    from ray._raylet import GcsClient, GcsClientOptions  # type: ignore[attr-defined]  # compiled: no stub

    state = GlobalState()
    state._initialize_global_state(
        GcsClientOptions.create(head, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    )
    try:
        nodes, draining = state.node_table(), state.get_draining_nodes()
        infos = GcsClient(address=head).get_all_node_info().values()
    finally:
        state.disconnect()
    started_ms = {info.node_id.hex(): info.start_time_ms for info in infos}
    return HeadTables(nodes=tuple(nodes), draining=frozenset(draining), started_ms=started_ms)


def address_kept_in(temp_dir: Path) -> str:
    """The address of the head that was started with this ``--temp-dir``, once ``ray start`` has returned."""
    return (temp_dir / "ray_current_cluster").read_text().strip()


def session_directory() -> str:
    """Where Ray keeps the logs and sockets of this process's node, until the node ends."""
    import ray

    return str(ray._private.worker._global_node.get_session_dir_path())


def raylet_socket() -> str:
    """The path of the socket of this process's node, which each worker there has in its command line."""
    import ray

    return str(ray._private.worker._global_node.raylet_socket_name)


def is_job_driver() -> bool:
    """Whether ``ray job submit`` started this process, or the one that started it. Needs no Ray."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def start_options(temp_dir: str) -> dict[str, Any]:
    """For ``ray.init`` where it starts a Ray: all its files go below ``temp_dir``, and no worker is started
    before it is needed. Idle ones can't become Train's, whose environment differs; they only cost a core.
    """
    return {"_temp_dir": temp_dir, "_system_config": {"prestart_worker_first_driver": False}}


def reread_authentication() -> None:
    """After the call the mode and the token that are set now hold; Ray reads them when it is imported."""
    from ray import _raylet

    _raylet.Config.initialize("")  # type: ignore[attr-defined]  # compiled: it has no stub
    _raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]  # as above


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started inside listens on loopback alone. Ray reads the variable for it when it is
    imported, which was before.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def ray_on_loopback() -> None:
    """The program ``ray``, for several nodes on one machine. With the variable alone it starts no second
    node, and without it a node listens on all addresses.
    """
    from ray._private import ray_constants, services
    from ray.scripts.scripts import main

    ray_constants.ENABLE_RAY_CLUSTER = True
    services.get_node_ip_address = _loopback
    main()


def _loopback(_address: str | None = None) -> str:
    return "127.0.0.1"


@contextmanager
def errors_of_nodes(are_heard: bool) -> Iterator[None]:
    """A connection that is made inside never prints lost workers, unless they ``are_heard``.

    Ray prints every one of the cluster to standard output, whatever its log level is. Those of ours leave a
    row, and the tables and ``--json`` need standard output for themselves.
    """
    from ray._private import worker

    listen = worker.listen_error_messages
    if not are_heard:
        worker.listen_error_messages = _do_nothing
    try:
        yield
    finally:
        worker.listen_error_messages = listen


@contextmanager
def sigterm_left_alone() -> Iterator[None]:
    """Inside, ``ray.init`` does not set its handler of SIGTERM, which ends the driver with exit code 15."""
    from ray._private import utils

    set_handler = utils.set_sigterm_handler
    utils.set_sigterm_handler = _do_nothing
    try:
        yield
    finally:
        utils.set_sigterm_handler = set_handler


@contextmanager
def ids_from_the_kernel() -> Iterator[None]:
    """Inside, a class that becomes an actor gets an id of the kernel's, and Ray's own generator is not asked:
    children forked later would all go on with it, and draw the same ids.
    """
    import ray.actor

    as_it_is = ray.actor.ActorClassID

    class FromTheKernel:
        @staticmethod
        def from_random() -> object:
            return as_it_is(os.urandom(as_it_is.size()))

    ray.actor.ActorClassID = FromTheKernel
    try:
        yield
    finally:
        ray.actor.ActorClassID = as_it_is


def with_its_priority() -> dict[str, str]:
    """Variables with which a worker keeps the priority that it was started with; Ray would lower it."""
    return {"RAY_worker_niceness": "0"}


def readiness_of(actor: Any) -> Any:
    """A reference that is ready once the actor's constructor has returned, and fails as that does."""
    return actor.__ray_ready__.remote()


def variables_handed_on() -> dict[str, str]:
    """Those of this process that Ray Train gives to its controller and its workers."""
    from ray.train.v2._internal.constants import get_env_vars_to_propagate

    found: dict[str, str] = get_env_vars_to_propagate()
    return found


def _do_nothing(*_: Any) -> None:
    return None
