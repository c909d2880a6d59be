"""What happens to a training, and how long it takes until there is a new step, or all of them."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import psutil

from tests.bench.recovery.stock import Done
from tests.bench.recovery.systems import System
from tests.hosts import Host, hosts_on, wait_until
from tests.hosts_tier.clusters import Cluster

EVERY = 100
_ENDLESS = 10**6
# Steps before anything happens: several saves.
# By then what is to wait for the next attempt does so, on two cores.
SETTLED = 10 * EVERY
_START_S = 600.0
# To look takes a processor's time from what is measured; when a step was done stands in what is looked at.
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How long a system took; None: longer than it was given. ``num_repeated`` are steps that were done
    again, where all of them were waited for.
    """

    system: str
    seconds: float | None
    num_repeated: int | None = None


Fault = Callable[[Cluster], None]
SystemT = TypeVar("SystemT", bound=System)


def power_off(cluster: Cluster) -> None:
    _at_work(cluster)[0].power_off()


def cut(cluster: Cluster) -> None:
    _at_work(cluster)[0].cut()


def hang(cluster: Cluster) -> None:
    _at_work(cluster)[1].send_signal(signal.SIGSTOP)


def kill(cluster: Cluster) -> None:
    _at_work(cluster)[1].kill()


def hang_a_minute(cluster: Cluster) -> None:
    _, process = _at_work(cluster)
    process.send_signal(signal.SIGSTOP)
    time.sleep(60)
    with suppress(psutil.NoSuchProcess):  # whoever had no patience has ended it
        process.send_signal(signal.SIGCONT)


def _at_work(cluster: Cluster) -> tuple[Host, psutil.Process]:
    """What goes on in silence on a host that was cut off is nobody's work any more."""
    return next(found for found in cluster.training_workers() if not found[0].is_silent)


SCHEDULE = (kill, power_off, cut, hang_a_minute)


def until_new_step(make: Callable[[Path], System], fault: Fault, patience_s: float) -> Reached:
    """From the fault to the first step of workers that were not there before it."""
    with training(make, num_steps=_ENDLESS, num_workers=3) as (system, cluster, _):
        wait_for_step(system, SETTLED, _START_S)
        struck_s = time.time()
        fault(cluster)
        before = {done.worker for done in system.steps() if done.ended_s <= struck_s}
        found: list[Done] = []

        def has_stepped() -> bool:
            found[:] = [done for done in system.steps() if done.worker not in before]
            return bool(found)

        with suppress(TimeoutError):
            wait_until(has_stepped, patience_s, every_s=_LOOK_EVERY_S)
        seconds = found[0].ended_s - struck_s if found else None
        return Reached(system=system.name, seconds=seconds)


def until_all_steps(make: Callable[[Path], System], num_steps: int, patience_s: float) -> Reached:
    """From the first step to the last, while one thing after the other happens. A hang ends after 60 s."""
    with training(make, num_steps=num_steps, num_workers=4) as (system, cluster, driver):
        with suppress(TimeoutError):
            for number, fault in enumerate(SCHEDULE, start=1):
                wait_for_step(system, num_steps * number // (len(SCHEDULE) + 1), patience_s)
                fault(cluster)
            wait_until(lambda: driver.poll() is not None, patience_s, "the end")
        steps = system.steps()
    seconds = max(done.ended_s for done in steps) - min(done.ended_s for done in steps)
    is_whole = driver.returncode == 0 and _has_all(steps, num_steps)
    return Reached(
        system=system.name, seconds=seconds if is_whole else None, num_repeated=_num_repeated(steps)
    )


@contextmanager
def training(
    make: Callable[[Path], SystemT], *, num_steps: int, num_workers: int
) -> Iterator[tuple[SystemT, Cluster, "subprocess.Popen[bytes]"]]:
    with TemporaryDirectory(prefix="longhaul-bench-") as name, hosts_on(Path(name) / "hosts") as lan:
        system = make(Path(name))
        cluster = Cluster(lan=lan, settings=system.settings)
        cluster.start(num_workers)
        yield system, cluster, system.start(cluster, num_steps, EVERY)


def wait_for_step(system: System, step: int, deadline_s: float) -> None:
    wait_until(
        lambda: any(done.step >= step for done in system.steps()),
        deadline_s,
        f"step {step}",
        every_s=_LOOK_EVERY_S,
    )


def _has_all(steps: Sequence[Done], num_steps: int) -> bool:
    """What is before the last workers' steps is in the save that they began from, whoever recorded it."""
    from_save = {done.step for done in steps if done.worker == steps[-1].worker}
    return from_save == set(range(min(from_save), num_steps + 1))


def _num_repeated(steps: Sequence[Done]) -> int:
    return len(steps) - len({done.step for done in steps})
