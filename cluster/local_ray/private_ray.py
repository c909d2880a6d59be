"""Where a driver's Ray comes from: a private one on this machine, or a cluster that is already there.

A private Ray lives in a directory that others can't open, listens on loopback alone and asks for a token of
its own. It is gone with the ``with`` block; if the driver is killed, ``cluster.local_ray.reaper`` ends it.
"""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from cluster import this_machine
from cluster.local_ray.marked_directory import check_closed, environment_of, guarded_directory
from cluster.local_ray.timeouts import ON_ONE_MACHINE, where_unset
from cluster.local_ray.variables import variables

# Results never travel through the object store, and containers often have only 64 MiB of /dev/shm.
OBJECT_STORE_BYTES = 128 * 2**20


def ray_for_driver(num_cpus: int | None = None, verbose: bool = False) -> AbstractContextManager[None]:
    """The cluster that ``RAY_ADDRESS`` names (Ray sets it in a submitted job), else a private Ray."""
    address = os.environ.get("RAY_ADDRESS")
    return cluster_ray(address, verbose) if address else private_ray(num_cpus, verbose)


@contextmanager
def cluster_ray(address: str, verbose: bool = False) -> Iterator[None]:
    """Connected to a running cluster; it goes on when the block ends. What it logs is the user's choice."""
    import ray

    with _terminates_as_exception():
        with _errors_of_nodes(verbose):
            _init(address=address, log_to_driver=verbose, logging_level=_log_level(verbose))
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def private_ray(num_cpus: int | None = None, verbose: bool = False) -> Iterator[None]:
    """A Ray of this driver alone; afterwards no process and no directory of it is left.

    That holds at once after a normal end, an exception, Ctrl-C and SIGTERM, and within 15 s after
    ``kill -9`` of the driver. SIGTERM raises ``SystemExit(143)`` unless the caller handles it.
    """
    with (
        guarded_directory() as root,
        token_of_our_own(),
        _terminates_as_exception(),
        _started(root, num_cpus, verbose),
    ):
        yield


@contextmanager
def token_of_our_own() -> Iterator[None]:
    """Other users of this machine reach loopback, and left alone Ray would write a token into the home
    directory.
    """
    try:
        with variables({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}):
            _reread_authentication()
            yield
    finally:
        _reread_authentication()


def _reread_authentication() -> None:
    """Ray reads mode and token when it is imported, and never again by itself."""
    from ray import _raylet

    _raylet.Config.initialize("")  # type: ignore[attr-defined]  # compiled: it has no stub
    _raylet.AuthenticationTokenLoader.instance().reset_cache()  # type: ignore[attr-defined]  # as above


@contextmanager
def _started(root: str, num_cpus: int | None, verbose: bool) -> Iterator[None]:
    import ray

    settings = environment_of(root) | where_unset(ON_ONE_MACHINE, os.environ)
    try:
        with variables(settings), on_loopback(), _errors_of_nodes(verbose):
            _init(
                # "auto" would join whatever Ray happens to run on this machine.
                address="local",
                num_cpus=num_cpus or this_machine.num_cpus(),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=verbose,
                logging_level=_log_level(verbose),
                # Ray opens this folder to everybody; the one above it stays closed.
                _temp_dir=f"{root}/ray",
                # Idle workers can't become Train workers, whose environment differs; they only cost a core.
                _system_config={"prestart_worker_first_driver": False},
            )
        check_closed(root)
        yield
    finally:
        ray.shutdown()


@contextmanager
def on_loopback() -> Iterator[None]:
    """Ray has read the variable when it was imported, which was before."""
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


def _init(**options: Any) -> None:
    """Ray's core sets a handler of SIGTERM beneath Python's, which lets Python's run and ends the process
    three seconds later whatever that does, with an alarm.
    """
    import ray

    try:
        ray.init(**options)
    finally:
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.alarm(0)


@contextmanager
def _errors_of_nodes(are_heard: bool) -> Iterator[None]:
    """Ray prints every lost worker of the cluster to standard output, whatever its log level is. Those of
    ours leave a row, and the tables and ``--json`` need standard output for themselves.
    """
    from ray._private import worker

    listen = worker.listen_error_messages
    if not are_heard:
        worker.listen_error_messages = _do_nothing
    try:
        yield
    finally:
        worker.listen_error_messages = listen


def _do_nothing(*_: Any) -> None:
    return None


def _log_level(verbose: bool) -> str:
    return "INFO" if verbose else "ERROR"


@contextmanager
def _terminates_as_exception() -> Iterator[None]:
    """SIGTERM is the caller's to handle, or unwinds. The handler that ``ray.init`` sets before it does
    anything else would end the driver with exit code 15.
    """
    from ray._private import utils

    before, set_handler = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    utils.set_sigterm_handler = _do_nothing
    signal.signal(signal.SIGTERM, _unwind if before is signal.SIG_DFL else before)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        utils.set_sigterm_handler = set_handler


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
