"""The hosts that the other tests rest on: apart from each other, and gone when they should be."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.hosts import ROOT, Host, Lan, hosts_on, wait_until, why_not

pytestmark = [pytest.mark.hosts, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
DEADLINE_S = 20.0
ANSWER = "import socket; s = socket.create_server(('', 7777)); [s.accept()[0].close() for _ in iter(int, 1)]"
ASK = "import socket; socket.create_connection(('{address}', 7777), timeout=1)"

HEARKEN = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
    listener.bind(("", 7778))
    print("listens")
    print(listener.recv(100))
"""
CALL = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
    caller.sendto(b"a call", ("{address}", 7778))
"""


def listens(host: Host) -> None:
    host.start([sys.executable, "-c", ANSWER], log="listener")


def hears(asking: Host, asked: Host) -> bool:
    try:
        asking.run([sys.executable, "-c", ASK.format(address=asked.address)], deadline_s=DEADLINE_S)
    except RuntimeError:
        return False
    return True


def links() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout


def test_a_cut_link_separates_hosts_until_it_heals(tmp_path: Path) -> None:
    with hosts_on(tmp_path) as lan:
        one, other = lan.host("one"), lan.host("other")
        listens(other)
        wait_until(lambda: hears(one, other), DEADLINE_S)
        other.cut()
        assert not hears(one, other)
        other.heal()
        wait_until(lambda: hears(one, other), DEADLINE_S)


def test_a_host_that_hears_nothing_is_heard_until_all_is_let_in(tmp_path: Path) -> None:
    with hosts_on(tmp_path) as lan:
        one, other = lan.host("one"), lan.host("other")
        listens(other)
        one.start([sys.executable, "-c", HEARKEN], log="heard")
        wait_until(lambda: hears(one, other) and "listens" in one.says("heard"), DEADLINE_S)
        other.deafen()
        assert not hears(one, other)
        other.run([sys.executable, "-c", CALL.format(address=one.address)], deadline_s=DEADLINE_S)
        wait_until(lambda: "a call" in one.says("heard"), DEADLINE_S)
        other.let_all_in()
        wait_until(lambda: hears(one, other), DEADLINE_S)


def test_hosts_share_files_but_no_shared_memory_no_directory_of_rays_and_no_processes(tmp_path: Path) -> None:
    with hosts_on(tmp_path) as lan:
        one, other = lan.host("one"), lan.host("other")
        one.run(["touch", "/tmp/ray/mine", "/dev/shm/mine", str(tmp_path / "ours")], deadline_s=DEADLINE_S)
        other.run(["test", "-e", str(tmp_path / "ours")], deadline_s=DEADLINE_S)
        other.run(["test", "!", "-e", "/tmp/ray/mine"], deadline_s=DEADLINE_S)
        other.run(["test", "!", "-e", "/dev/shm/mine"], deadline_s=DEADLINE_S)
        assert one.run(["hostname"], deadline_s=DEADLINE_S).strip() == "one"
        seen = one.run(["ls", "/proc"], deadline_s=DEADLINE_S).split()
        assert str(os.getpid()) not in seen
    assert not Path("/dev/shm/mine").exists()


def test_a_host_without_power_ends_with_all_that_ran_in_it_and_the_others_go_on(tmp_path: Path) -> None:
    with hosts_on(tmp_path) as lan:
        one, other = lan.host("one"), lan.host("other")
        # A daemon that nobody waits for, as Ray's are.
        one.run(["bash", "-c", "setsid sleep 1000 < /dev/null > /dev/null 2>&1 &"], deadline_s=DEADLINE_S)
        other.start(["sleep", "1000"], log="sleeper")
        wait_until(lambda: bool(one.processes("sleep 1000")), DEADLINE_S)
        (sleeper,) = one.processes("sleep 1000")
        one.power_off()
        assert not sleeper.is_running()
        assert len(other.processes("sleep 1000")) == 1


def test_a_host_on_which_something_stands_still_loses_power_all_the_same(tmp_path: Path) -> None:
    with hosts_on(tmp_path) as lan:
        one = lan.host("one")
        brought_in = one.start(["sleep", "1000"], log="sleeper")
        wait_until(lambda: bool(one.processes("sleep 1000")), DEADLINE_S)
        one.processes("sleep 1000")[0].send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(brought_in.pid).status() == psutil.STATUS_STOPPED, DEADLINE_S)
        one.power_off()
    assert brought_in.returncode is not None


def test_a_host_that_is_switched_on_again_has_its_address_and_home_and_none_of_its_processes(
    tmp_path: Path,
) -> None:
    with hosts_on(tmp_path) as lan:
        one, other = lan.host("one"), lan.host("other")
        listens(other)
        wait_until(lambda: hears(one, other), DEADLINE_S)
        other.run(["sh", "-c", 'touch /tmp/ray/mine "$HOME/mine"'], deadline_s=DEADLINE_S)
        other.power_off()
        assert not hears(one, other)
        other.power_on()
        assert not hears(one, other)
        other.run(["sh", "-c", 'test ! -e /tmp/ray/mine && test -e "$HOME/mine"'], deadline_s=DEADLINE_S)
        listens(other)
        wait_until(lambda: hears(one, other), DEADLINE_S)


@pytest.mark.parametrize("end", ["raises", "killed"])
def test_nothing_is_left_of_a_network_whose_test_failed_or_was_killed(end: str, tmp_path: Path) -> None:
    before = links()
    program = f"""
        import sys, time
        from pathlib import Path
        from tests.hosts import hosts_on
        with hosts_on(Path({str(tmp_path)!r})) as lan:
            lan.host("one").start(["sleep", "4321"], log="sleeper")
            print("up", flush=True)
            if {end!r} == "raises":
                raise LookupError("on purpose")
            time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        if end == "killed":
            process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    assert process.returncode == {"raises": 1, "killed": -signal.SIGKILL}[end]
    wait_until(lambda: not remains(tmp_path), DEADLINE_S)
    assert links() == before


def remains(folder: Path) -> list[int]:
    return [process.pid for process in psutil.process_iter(["cmdline"]) if _names(process, str(folder))]


def _names(process: psutil.Process, folder: str) -> bool:
    words = process.info["cmdline"] or []
    return process.pid != os.getpid() and (
        words == ["sleep", "4321"] or any(folder in word for word in words)
    )


def test_a_host_that_can_not_start_says_why(tmp_path: Path) -> None:
    with hosts_on(tmp_path) as lan:
        lan.host("one")
        with pytest.raises(RuntimeError, match=r"ip link add name a\.name\.that\.is\.too\.long .*: .*"):
            lan.host("a.name.that.is.too.long")


def test_ended_twice_is_ended(tmp_path: Path) -> None:
    lan = Lan(tmp_path)
    lan.boot()
    lan.end()
    lan.end()
