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
from cluster.ray_internals import (
    errors_of_nodes,
    on_loopback,
    reread_authentication,
    sigterm_left_alone,
    start_options,
)

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
        with errors_of_nodes(verbose):
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
            reread_authentication()
            yield
    finally:
        reread_authentication()


@contextmanager
def _started(root: str, num_cpus: int | None, verbose: bool) -> Iterator[None]:
    import ray

    settings = environment_of(root) | where_unset(ON_ONE_MACHINE, os.environ)
    try:
        with variables(settings), on_loopback(), errors_of_nodes(verbose):
            _init(
                # "auto" would join whatever Ray happens to run on this machine.
                address="local",
                num_cpus=num_cpus or this_machine.num_cpus(),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=verbose,
                logging_level=_log_level(verbose),
                # Ray opens this folder to everybody; the one above it stays closed.
                **start_options(f"{root}/ray"),
            )
        check_closed(root)
        yield
    finally:
        ray.shutdown()


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


def _log_level(verbose: bool) -> str:
    return "INFO" if verbose else "ERROR"


@contextmanager
def _terminates_as_exception() -> Iterator[None]:
    """SIGTERM is the caller's to handle, or unwinds."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _unwind if before is signal.SIG_DFL else before)
    try:
        with sigterm_left_alone():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
