"""Gives a driver its Ray: a private one on this machine, or a cluster that already runs.

A private Ray lives in a directory that other users cannot open, listens on loopback alone and requires a
token of its own. It ends with the ``with`` block; if the driver is killed, ``cluster.local_ray.reaper``
ends it.
"""

import logging
import os
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from cluster import this_machine
from cluster.inventory import ClusterError, DidNotStart
from cluster.local_ray import agent_stand_in, worker_start
from cluster.local_ray.marked_directory import (
    check_closed,
    environment_of,
    marked_directory,
    short_directory,
)
from cluster.local_ray.timeouts import ON_ONE_MACHINE, where_unset
from cluster.local_ray.variables import variables
from cluster.nodes import query_cluster
from cluster.ray_internals import (
    ended_by_driver_alone,
    entrypoint_without_options,
    lean,
    lost_node_messages,
    on_loopback,
    reread_variables,
    shut_down,
    sigterm_left_alone,
    start_options,
)

# Results never use the object store, and containers often have only 64 MiB of /dev/shm.
OBJECT_STORE_BYTES = 128 * 2**20
# Ray gives its own processes 30 s, which a busy machine may exceed once.
_TRIES = 3
# Its logs, and those of its workers.
_LEAST_FREE_BYTES = 50 * 10**6
_log = logging.getLogger(__name__)


def ray_for_driver(
    verbose: bool = False, aside: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Uses the cluster that ``RAY_ADDRESS`` names (Ray sets it in a submitted job), otherwise a private
    Ray.

    ``aside`` is called right before a private Ray starts, with the variables of its processes set: what it
    starts loads meanwhile, and ends with that Ray.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return private_ray(verbose=verbose, aside=aside)
    return cluster_ray(address, verbose)


@contextmanager
def cluster_ray(address: str, verbose: bool = False) -> Iterator[None]:
    """Connects to a running cluster, which continues when the block ends. The user chooses how it logs.

    Raises ``ClusterError`` within seconds if no cluster answers there; Ray itself would try for minutes.
    """
    try:
        query_cluster(address)
    except ClusterError as error:
        raise ClusterError(
            f"RAY_ADDRESS: {error}; expected HOST:PORT of its head, as 10.0.0.1:6379, and "
            "RAY_AUTH_MODE=token if it asks for a token, or no RAY_ADDRESS for a Ray of this machine"
        ) from None
    with _terminates_as_exception():
        with lost_node_messages(verbose):
            local = _on_this_machine(sys.executable) if address.startswith("127.") else {}
            _init(address=address, log_to_driver=verbose, logging_level=_log_level(verbose), **local)
        try:
            yield
        finally:
            shut_down()


@contextmanager
def private_ray(
    num_cpus: int | None = None, verbose: bool = False, aside: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Starts a Ray for this driver alone; afterwards no process and no directory of it is left.

    That holds at once after a normal end, an exception, Ctrl-C and SIGTERM, and within 15 s after ``kill
    -9`` of the driver. SIGTERM raises ``SystemExit(143)`` unless the caller handles it.

    Raises ``DidNotStart`` after three tries, of which nothing is left either. Each try calls ``aside``. Where
    its files would not fit, none is made.
    """
    _check_space(short_directory())
    with ExitStack() as stack:
        _start_in(stack, lambda: _one_try(num_cpus, verbose, aside))
        yield


def _check_space(folder: str) -> None:
    """Ray itself would try for a minute, and fill the screen with what it could not write."""
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        raise DidNotStart(
            f"{folder} has {free / 1e6:.1f} MB free, and Ray's files on this machine need "
            f"{_LEAST_FREE_BYTES / 1e6:.0f} MB; make room there, or name another folder in TMPDIR"
        )


def _start_in(stack: ExitStack, one_try: Callable[[], AbstractContextManager[None]]) -> None:
    for number in range(1, _TRIES + 1):
        try:
            stack.enter_context(one_try())
        except DidNotStart as problem:
            if number == _TRIES:
                raise DidNotStart(
                    f"Ray did not start on this machine, in {_TRIES} tries ({problem}); see whether it is "
                    "busy or out of memory, or give RAY_ADDRESS"
                ) from None
            _log.warning("Ray did not start (%s): another try", problem)
        else:
            return


@contextmanager
def _one_try(num_cpus: int | None, verbose: bool, aside: Callable[[], None]) -> Iterator[None]:
    with (
        marked_directory() as root,
        random_token(lambda: _call_with(_settings(root), aside)),
        _terminates_as_exception(),
        _started(root, num_cpus, verbose),
    ):
        yield


@contextmanager
def random_token(aside: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Requires a random token inside the block, because other users of this machine reach loopback.

    By default Ray would write a token into the home directory. ``aside`` is called with the token set and
    before Ray is imported, which takes a while.
    """
    try:
        with variables({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}):
            aside()
            reread_variables()
            yield
    finally:
        reread_variables()


@contextmanager
def _started(root: str, num_cpus: int | None, verbose: bool) -> Iterator[None]:
    # Interrupted while it is loaded, Ray could not be shut down.
    import_module("ray")
    try:
        with (
            variables(_settings(root)),
            on_loopback(),
            ended_by_driver_alone(),
            lean(worker_start.__file__, agent_stand_in.__file__, logs_reach_driver=verbose),
            lost_node_messages(verbose),
            _said_in_one_line(),
        ):
            _init(
                # "auto" would join any other Ray on this machine.
                address="local",
                num_cpus=num_cpus or this_machine.num_cpus(),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=verbose,
                logging_level=_log_level(verbose),
                **_on_this_machine(sys.executable),
                # Ray opens this folder to everybody; its parent stays closed.
                **start_options(f"{root}/ray"),
            )
        check_closed(root)
        yield
    finally:
        shut_down()


@contextmanager
def _said_in_one_line() -> Iterator[None]:
    try:
        yield
    # Ray raises errors of many types, and the bare one for a start that takes too long.
    except Exception as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise DidNotStart(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}") from error


def _settings(root: str) -> dict[str, str]:
    return environment_of(root) | where_unset(ON_ONE_MACHINE, os.environ)


def _call_with(settings: dict[str, str], call: Callable[[], None]) -> None:
    with variables(settings):
        call()


def _on_this_machine(executable: str) -> dict[str, Any]:
    """Options of Ray whose workers all start with this driver's Python.

    Ray writes its path into a shell's line as it is, so a path with a space is quoted here.
    """
    quoted = shlex.quote(executable)
    return {} if quoted == executable else {"runtime_env": {"py_executable": quoted}}


def _init(**options: Any) -> None:
    """Initialises Ray without telling it the driver's options, and restores Python's handler of SIGTERM.

    Ray's core sets a handler below Python's. It lets Python's handler run, and an alarm then ends the
    process three seconds later, whatever Python's handler does.
    """
    import ray

    try:
        with entrypoint_without_options():
            ray.init(**options)
    finally:
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.alarm(0)


def _log_level(verbose: bool) -> str:
    return "INFO" if verbose else "ERROR"


@contextmanager
def _terminates_as_exception() -> Iterator[None]:
    """Leaves SIGTERM to the caller's handler; without one, SIGTERM raises ``SystemExit``."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _unwind if before is signal.SIG_DFL else before)
    try:
        with sigterm_left_alone():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
