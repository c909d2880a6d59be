"""The only door to private names of Ray itself; each is behind a function that says what it promises.

Ray may change them in any version: ``tests/live/machines/test_ray_internals.py`` lists every name and fails
for each that is gone. The private names of Ray Train's trainer and controller are in
``jobs.launch.ray_train.train_internals``. Functions import Ray when they need it, so that a bare Python can
import this file.
"""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from cluster.signals import deaf_children

# Ray keeps workers that wait for so long, and ends them sooner with their job.
_FOR_GOOD_S = 10**9
_PATIENCE_S = 5.0


def draining_nodes() -> frozenset[str]:
    """Returns the ids of nodes that take no new work and end soon, as the connected head reports them."""
    import ray

    return frozenset(ray._private.state.state.get_draining_nodes())


def free_resources() -> dict[str, dict[str, float]]:
    """Returns the unclaimed amount of each resource by the id of each living node.

    A resource that is fully claimed may be missing. The connected head is asked; it hears of changes with a
    delay.
    """
    import ray

    free: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    return free


def head_address(address: str) -> str:
    """Returns the ``host:port`` that ``address`` means to Ray, such as "auto". Makes no connection."""
    from ray._private.services import canonicalize_bootstrap_address

    return canonicalize_bootstrap_address(address) or address


def tables_of(head: str) -> tuple[tuple[dict[str, Any], ...], frozenset[str]]:
    """Asks the head at ``host:port`` without becoming a driver: no job is registered and no worker started.

    Returns Ray's table of nodes, including dead ones, each with its start as ``StartTimeMs``; and the ids of
    draining nodes.

    Every failure raises an exception of some type, with one exception: if nothing listens there, Ray ends
    this process after a minute.
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
    dated = ({**node, "StartTimeMs": started_ms.get(node["NodeID"], 0)} for node in nodes)
    return tuple(dated), frozenset(draining)


def address_kept_in(temp_dir: Path) -> str:
    """Returns the address of the head started with this ``--temp-dir``. Call it after ``ray start`` has
    returned.
    """
    return (temp_dir / "ray_current_cluster").read_text(encoding="utf-8").strip()


def session_directory() -> str:
    """Returns where Ray keeps the logs and sockets of this process's node, until the node ends."""
    import ray

    return str(ray._private.worker._global_node.get_session_dir_path())


def is_own_ray() -> bool:
    """Whether this process has started the Ray that it is connected to."""
    import ray

    return bool(ray._private.worker._global_node.is_head())


def raylet_socket() -> str:
    """Returns the path of the node's socket, which each worker of the node has in its command line."""
    import ray

    return str(ray._private.worker._global_node.raylet_socket_name)


def variables_of_workers() -> dict[str, str]:
    """Returns what Ray's core reads only as it is loaded, in each worker of this process's Ray."""
    import ray
    from ray._private import ray_constants

    job, raylet, *_ = ray_constants.RAY_INTERNAL_FLAGS
    processes = dict(ray._private.worker._global_node.live_processes())
    return {job: ray.get_runtime_context().get_job_id(), raylet: str(processes["raylet"].pid)}


def start_idle_worker(raylet: str, job_id: str, environment: str) -> None:
    """Asks the raylet at ``host:port`` to start one more worker of that job, and does not wait for it.

    It waits for the next actor with exactly this ``environment``, and ends with the job. What can't be
    asked for is left out.
    """
    from ray.core.generated import common_pb2, node_manager_pb2
    from ray.core.generated.runtime_environment_pb2 import RuntimeEnvInfo

    order = node_manager_pb2.PrestartWorkersRequest(
        language=common_pb2.PYTHON,
        job_id=bytes.fromhex(job_id),
        runtime_env_info=RuntimeEnvInfo(serialized_runtime_env=environment),
        keep_alive_duration_secs=_FOR_GOOD_S,
        num_workers=1,
    )
    with _asking(raylet) as stub:
        stub.PrestartWorkers(order, timeout=_PATIENCE_S)


def workers_at(raylet: str) -> frozenset[int]:
    """Returns the ids of the processes of the workers that are up there; none if it does not answer."""
    from ray.core.generated import node_manager_pb2

    with _asking(raylet) as stub:
        return frozenset(
            stub.GetWorkerPIDs(node_manager_pb2.GetWorkerPIDsRequest(), timeout=_PATIENCE_S).pids
        )
    return frozenset()


@contextmanager
def _asking(raylet: str) -> Iterator[Any]:
    """For questions to a raylet; suppresses their failures. No proxy hears them: they carry the token."""
    import grpc  # type: ignore[import-untyped]  # it has no stubs
    from ray._private import ray_constants
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub

    options = ray_constants.GLOBAL_GRPC_OPTIONS
    with suppress(grpc.RpcError, OSError), init_grpc_channel(raylet, options) as channel:
        yield NodeManagerServiceStub(channel)


def is_job_driver() -> bool:
    """Says whether ``ray job submit`` started this process or its parent. Needs no Ray."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def start_options(temp_dir: str) -> dict[str, Any]:
    """Returns options for a ``ray.init`` that starts Ray: all its files go below ``temp_dir``.

    No worker starts before it is needed. Idle workers cannot become Train workers, whose environment
    differs; they only cost a core.
    """
    return {"_temp_dir": temp_dir, "_system_config": {"prestart_worker_first_driver": False}}


def reread_variables() -> None:
    """Applies the ``RAY_`` variables and the token that are set now; Ray reads them only when it is
    imported.
    """
    from ray import _raylet

    _raylet.Config.initialize("")  # type: ignore[attr-defined]  # compiled: it has no stub
    _raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]  # as above


@contextmanager
def on_loopback() -> Iterator[None]:
    """Makes a Ray that is started inside the block listen on loopback alone.

    Ray reads the variable for it only when it is imported, which has already happened.
    """
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def ray_on_loopback() -> None:
    """Runs the program ``ray`` so that several nodes on one machine listen on loopback alone.

    With the variable alone Ray starts no second node, and without it a node listens on all addresses. The
    nodes are deaf to stop signals, as those of a private Ray are: what runs on them saves first.
    """
    from ray._private import ray_constants, services
    from ray.scripts.scripts import main

    ray_constants.ENABLE_RAY_CLUSTER = True
    services.get_node_ip_address = _loopback
    with ended_by_driver_alone():
        main()


def _loopback(_address: str | None = None) -> str:
    return "127.0.0.1"


@contextmanager
def lost_node_messages(are_printed: bool) -> Iterator[None]:
    """Keeps a connection made inside the block from printing lost workers, unless ``are_printed``.

    Ray prints every lost worker of the cluster to standard output, whatever its log level. Our own lost
    workers leave a row, and the tables and ``--json`` need standard output for themselves.
    """
    from ray._private import worker

    listen = worker.listen_error_messages
    if not are_printed:
        worker.listen_error_messages = _do_nothing
    try:
        yield
    finally:
        worker.listen_error_messages = listen


@contextmanager
def entrypoint_without_options() -> Iterator[None]:
    """Makes a driver that connects inside the block known to Ray by its program and its first words alone.

    Ray keeps the whole command line otherwise, and shows it in its lists of jobs, also in those of others who
    know the token. Options hold settings, which may be secrets.
    """
    from ray._private import utils

    as_it_is = utils.get_entrypoint_name
    utils.get_entrypoint_name = _command_without_options
    try:
        yield
    finally:
        utils.get_entrypoint_name = as_it_is


def _command_without_options() -> str:
    return shlex.join(takewhile(lambda word: not word.startswith("-"), sys.argv))


@contextmanager
def sigterm_left_alone() -> Iterator[None]:
    """Stops ``ray.init`` inside the block from setting its SIGTERM handler, which ends the driver with exit
    code 15.
    """
    from ray._private import utils

    set_handler = utils.set_sigterm_handler
    utils.set_sigterm_handler = _do_nothing
    try:
        yield
    finally:
        utils.set_sigterm_handler = set_handler


def shut_down() -> None:
    """``ray.shutdown``, which leaves SIGTERM to Python's handler.

    Ray's core sets SIGTERM to the system's default when it ends. That is a second before Ray's processes have
    ended, in which SIGTERM would end the driver. Some 0.3 ms of it remain, until Ray calls ``disconnect``.
    """
    import ray

    state = ray._private.state.state
    disconnect = state.disconnect

    # Ray calls it as soon as its core has ended.
    def disconnect_without_core() -> None:
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and current_thread() is main_thread():
            signal.signal(signal.SIGTERM, handler)
        disconnect()

    state.disconnect = disconnect_without_core
    try:
        ray.shutdown()
    finally:
        del state.disconnect


@contextmanager
def ended_by_driver_alone() -> Iterator[None]:
    """Lets no stop signal end one of Ray's processes that are started inside the block.

    Each has a process group of its own, and is deaf to SIGTERM and SIGHUP, as are its workers. So a terminal
    that closes, ``timeout``, ``kill -TERM -GROUP``, or a control group that is stopped ends the driver
    alone, which ends Ray when it has saved. Ray would ask with SIGTERM and wait a second for each of them.
    """
    from ray._private import services

    as_it_is = services.ConsolePopen

    class Deaf(as_it_is):  # type: ignore[misc,valid-type]  # Ray's class has no types
        def __init__(self, *args: Any, **options: Any) -> None:
            with deaf_children():
                super().__init__(*args, **{"process_group": 0, **options})

        def terminate(self) -> None:
            """With its group: an agent whose raylet was killed would look for it for a minute."""
            if self.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)

    services.ConsolePopen = Deaf
    try:
        yield
    finally:
        services.ConsolePopen = as_it_is


@contextmanager
def lean(worker_start: str, agent: str, *, logs_reach_driver: bool) -> Iterator[None]:
    """Starts a Ray inside the block without the helpers that a driver with no dashboard has no use for.

    Neither an autoscaler nor a server for the dashboard is started, nor what passes logs on unless
    ``logs_reach_driver``. In place of Ray's own scripts, ``worker_start`` starts each worker, and ``agent``
    is the node's agent. Nor does this process load what a dashboard would need, to see whether it is there.
    """
    from ray._private import parameter, ray_constants, services, utils

    params, start, python, missing = (
        parameter.RayParams,
        services.start_api_server,
        services._build_python_executable_command_memory_profileable,
        utils.get_dashboard_dependency_error,
    )

    class Lean(params):  # type: ignore[misc,valid-type]  # Ray's class has no types
        def __init__(self, *args: Any, **options: Any) -> None:
            ours = {"no_monitor": True, "setup_worker_path": worker_start}
            super().__init__(*args, **{**options, **ours, "include_log_monitor": logs_reach_driver})

    def command(component: str, *args: Any) -> list[str]:
        is_agent = component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT
        return [sys.executable, "-S", "-E", agent] if is_agent else python(component, *args)

    parameter.RayParams, services.start_api_server = Lean, _no_server
    services._build_python_executable_command_memory_profileable = command
    utils.get_dashboard_dependency_error = _unwanted
    try:
        yield
    finally:
        parameter.RayParams, services.start_api_server = params, start
        services._build_python_executable_command_memory_profileable = python
        utils.get_dashboard_dependency_error = missing


@contextmanager
def ids_from_the_kernel() -> Iterator[None]:
    """Gives actor classes made inside the block an id from the kernel instead of Ray's own generator.

    Children forked later would all continue with the state of that generator and draw the same ids.
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


def keep_priority() -> dict[str, str]:
    """Returns variables that let a worker keep the priority it was started with; Ray would lower it."""
    return {"RAY_worker_niceness": "0"}


def readiness_of(actor: Any) -> Any:
    """Returns a reference that is ready once the actor's constructor has returned, and fails if it fails."""
    return actor.__ray_ready__.remote()


def propagated_variables() -> dict[str, str]:
    """Returns the variables of this process that Ray Train hands to its controller and its workers."""
    from ray.train.v2._internal.constants import get_env_vars_to_propagate

    found: dict[str, str] = get_env_vars_to_propagate()
    return found


def environment_of_workers(told: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the environment that Ray Train's controller, if this process is one, asks for; its settings
    have ``told`` it so.
    """
    return {**told, "env_vars": {**propagated_variables(), **told.get("env_vars", {})}}


def _do_nothing(*_: Any) -> None:
    return None


def _no_server(*_: Any, **__: Any) -> tuple[None, None]:
    """Neither an address nor a process."""
    return None, None


def _unwanted() -> ImportError:
    return ImportError("no dashboard is wanted")
