"""An hour of one run to which whatever is drawn happens, one or two things at a time.

A seed decides what happens in which order and for how long; to whom depends on who trains just then, too. It
is printed, and each fault with its moment. At the end the newest save is, to the bit, that of a run that was
left alone.
"""

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import psutil
import pytest

from tests.hosts import ROOT, Host, Lan, hosts_on, wait_until, why_not
from tests.hosts_tier.clusters import Cluster, Training
from tests.hosts_tier.faults import (
    Fault,
    a_raylet_is_killed,
    a_worker_process_is_killed,
    the_controller_is_killed,
    the_driver_is_killed,
)
from tests.hosts_tier.stories import END_S, MORE, RECOVERY_S, SPEC, START_S, assert_as_left_alone
from tests.live.command_line import DEADLINE_S, write_spec
from tests.live.recovery.test_kills import seed_of_this_time

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
FAULTS_S = float(os.environ.get("LONGHAUL_FAULTS_S", "3600"))
FOR_S = (1, 5, 15, 40)
HOUR_S = 3600
# Room for an hour of records, each of a second.
_STORE_BYTES = 256 << 20
# Read before anything else is, so that each module's time.time is this one.
_CLOCK = """
import os, pathlib, socket, time

def shown(real=time.time, file=pathlib.Path(os.environ["TEST_CLOCKS"]) / socket.gethostname()):
    try:
        return real() + float(file.read_text())
    except (OSError, ValueError):
        return real()

time.time = shown
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    cluster: Cluster
    store: Path
    clocks: Path
    dice: random.Random

    def host(self) -> Host:
        """One that trains."""
        return self.dice.choice(self.cluster.training_workers())[0]


# What happens; returns what ends it.
Trouble = Callable[[Scene], Callable[[], object]]


def _once(fault: Fault) -> Trouble:
    def happens(scene: Scene) -> Callable[[], object]:
        fault(scene.cluster)
        return lambda: None

    return happens


def a_host_is_silent(scene: Scene) -> Callable[[], object]:
    host = scene.host()
    host.cut()
    return host.heal


def a_host_hears_nothing(scene: Scene) -> Callable[[], object]:
    host = scene.host()
    host.deafen()
    return host.let_all_in


def a_link_is_slow(scene: Scene) -> Callable[[], object]:
    host = scene.host()
    host.let_in("2mbit")
    return host.let_all_in


def the_store_is_full(scene: Scene) -> Callable[[], object]:
    ballast = scene.store / "ballast"
    if not os.access(scene.store, os.W_OK):
        raise ValueError("it is read-only just now")
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    return ballast.unlink


def the_store_is_read_only(scene: Scene) -> Callable[[], object]:
    # Refused while a file is open for writing.
    wait_until(lambda: _mount("-o", "remount,ro", str(scene.store)), RECOVERY_S, "a moment without a writer")
    return lambda: _mount("-o", "remount,rw", str(scene.store))


def a_clock_is_off(scene: Scene) -> Callable[[], object]:
    """Of one host or of the head, by an hour, from now on."""
    name = scene.dice.choice([scene.host().name, scene.cluster.head.name])
    (scene.clocks / name).write_text(str(scene.dice.choice((-HOUR_S, 0, HOUR_S))))
    return lambda: None


TROUBLES: dict[str, Trouble] = {
    "a worker is killed": _once(a_worker_process_is_killed),
    "the controller is killed": _once(the_controller_is_killed),
    "the driver is killed": _once(the_driver_is_killed),
    "a raylet is killed": _once(a_raylet_is_killed),
    "a host is silent": a_host_is_silent,
    "a host hears nothing": a_host_hears_nothing,
    "a link is slow": a_link_is_slow,
    "the store is full": the_store_is_full,
    "the store is read-only": the_store_is_read_only,
    "a clock is off": a_clock_is_off,
}


@pytest.mark.soak
@pytest.mark.longest
def test_an_hour_of_random_faults_ends_in_the_run_that_was_left_alone(tmp_path: Path) -> None:
    dice = random.Random(seed_of_this_time())
    spec, clocks = write_spec(tmp_path, SPEC), tmp_path / "clocks"
    clocks.mkdir()
    (clocks / "sitecustomize.py").write_text(_CLOCK)
    with _small_disk(tmp_path / "store") as store, hosts_on(tmp_path / "hosts") as lan:
        keys = {"PYTHONPATH": f"{clocks}{os.pathsep}{ROOT}", "TEST_CLOCKS": str(clocks)}
        cluster = Cluster(lan=lan, keys=keys, has_dashboard=False)
        cluster.start(num_workers=3)
        training = Training(cluster, spec, store, "--keep")
        training.wait_for_step(MORE, START_S)
        scene = Scene(cluster=cluster, store=store, clocks=clocks, dice=dice)
        names, began, num_faults = _draws(dice), time.monotonic(), 0
        while time.monotonic() - began < FAULTS_S:
            drawn, for_s = [next(names) for _ in range(dice.choice((1, 1, 2)))], dice.choice(FOR_S)
            now = replace(scene, dice=random.Random(dice.getrandbits(64)))
            num_faults += len(_make_trouble(now, drawn, for_s))
            newest = training.newest_step()
            training.wait_for_step(newest + MORE, RECOVERY_S)
        training.stop(END_S)
        print(f"{num_faults} faults, {training.attempt()} attempts, {training.newest_step()} steps")
        assert_as_left_alone(training, spec, tmp_path / "alone", deadline_s=FAULTS_S + DEADLINE_S)


@pytest.mark.parametrize("names", [*permutations(("the store is full", "the store is read-only"))])
def test_a_store_that_was_full_and_read_only_takes_writes_again(names: Sequence[str], tmp_path: Path) -> None:
    with _small_disk(tmp_path / "store") as store:
        scene = Scene(cluster=Cluster(lan=Lan(tmp_path)), store=store, clocks=tmp_path, dice=random.Random(0))
        assert "the store is read-only" in _make_trouble(scene, names, 0)
        (store / "a").write_bytes(bytes(_STORE_BYTES // 2))


def _draws(dice: random.Random) -> Iterator[str]:
    """Each of all kinds comes before any comes again."""
    while True:
        yield from dice.sample([*TROUBLES], k=len(TROUBLES))


def _make_trouble(scene: Scene, names: Sequence[str], for_s: float) -> list[str]:
    """Returns what happened, which is over but for a clock that is off."""
    happened = list[str]()
    with ExitStack() as stack:
        for name in dict.fromkeys(names):
            # Nobody may be there to whom it could happen: an attempt is only being started.
            with suppress(ValueError, IndexError, psutil.NoSuchProcess):
                stack.callback(TROUBLES[name](scene))
                happened.append(name)
        print(f"{time.strftime('%X')}: {' and '.join(happened)}, for {for_s} s", flush=True)
        time.sleep(for_s)
    return happened


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Of its own, so that it can be full or read-only."""
    folder.mkdir()
    assert _mount("-t", "tmpfs", "-o", f"size={_STORE_BYTES}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*words: str) -> bool:
    return subprocess.run(["mount", *words], check=False).returncode == 0
