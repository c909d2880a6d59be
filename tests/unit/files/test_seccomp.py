"""The filter of system calls for AMD's pods, loaded into a process as a container's runtime loads it.

That the devices' programs can do without what it refuses was tried on none.
"""

import ctypes.util
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROFILE_FILE = ROOT / "cluster/kuberay/seccomp-amd.json"
DEADLINE_S = 60
# process_vm_readv, get_mempolicy, mbind, move_pages, kcmp
TO_BE_ALLOWED = (310, 239, 237, 279, 312)
# The numbers of calls below are that machine's.
MACHINE, NO_FILTERS = "x86_64", 77
# Loads the profile into its own process, and then runs what follows on the command line.
LOADS = """
import ctypes, ctypes.util, errno, json, os, sys
library = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
library.seccomp_init.restype = ctypes.c_void_p

class Compared(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]

profile = json.load(open(sys.argv[1], encoding="utf-8"))
assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
context = ctypes.c_void_p(library.seccomp_init(0x7FFF0000))
for rule in profile["syscalls"]:
    action = ctypes.c_uint32(0x00050000 | rule["errnoRet"])
    compared = [Compared(one["index"], 7, one["value"], one["valueTwo"]) for one in rule.get("args", [])]
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            continue  # Unknown to this library, which a runtime passes over too.
        array = (Compared * max(len(compared), 1))(*compared)
        done = library.seccomp_rule_add_array(context, action, number, len(compared), array)
        assert done in (0, -errno.EDOM), (name, done)
if library.seccomp_load(context):
    sys.exit(77)
exec(sys.argv[2])
"""
needs_library = pytest.mark.skipif(
    ctypes.util.find_library("seccomp") is None or platform.machine() != MACHINE,
    reason="libseccomp is not installed, or this is another machine than an x86_64",
)


def filtered(code: str) -> str:
    command = [sys.executable, "-S", "-E", "-c", LOADS, str(PROFILE_FILE), code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode == NO_FILTERS:
        pytest.skip("this kernel takes no filter of system calls")
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused_anyway() -> str:
    """The numbers of those calls that are to be allowed, but which are refused here without our profile."""
    code = (
        "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for number in {TO_BE_ALLOWED}:\n"
        "    libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "    if ctypes.get_errno() == errno.EPERM: print(number, end=' ')"
    )
    command = [sys.executable, "-S", "-E", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return done.stdout


@needs_library
@pytest.mark.parametrize(
    "call",
    [
        "libc.unshare(0x10000000)", "libc.mount(b'none', b'/nowhere', b'tmpfs', 0, None)", "libc.setns(0, 0)",
        "libc.syscall(321, 0, None, 0)", "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)", "libc.chroot(b'/')",
        "libc.syscall(250, 0, 0, 0)", "libc.syscall(298, None, 0, -1, -1, 0)", "libc.syscall(323, 0)",
    ],
)  # fmt: skip
def test_no_namespace_mount_or_program_in_the_kernel_is_made(call: str) -> None:
    """Also by root. 321 is bpf, 56 clone, 250 keyctl, 298 perf_event_open, 323 userfaultfd."""
    code = f"libc = ctypes.CDLL(None, use_errno=True); print({call}, errno.errorcode[ctypes.get_errno()])"
    assert filtered(code).split() == ["-1", "EPERM"]


@needs_library
def test_what_processes_of_one_node_do_with_each_other_is_allowed() -> None:
    """They look into each other's memory, say where theirs shall lie, and start threads and programs."""
    if refused := refused_anyway():
        pytest.skip(f"a filter of this machine refuses the calls {refused} already")
    code = """
import subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
there, here = ctypes.create_string_buffer(b"seen"), ctypes.create_string_buffer(4)
parts = [Part(ctypes.addressof(one), 4) for one in (here, there)]
count = libc.process_vm_readv(os.getpid(), ctypes.byref(parts[0]), 1, ctypes.byref(parts[1]), 1, 0)
print(count, here.raw.decode())
for number in TO_BE_ALLOWED:
    libc.syscall(number, 0, 0, 0, 0, 0, 0)
    assert ctypes.get_errno() != errno.EPERM, number
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["echo", "program"], capture_output=True, text=True).stdout, end="")
"""
    assert filtered(f"TO_BE_ALLOWED = {TO_BE_ALLOWED}\n{code}").split() == ["4", "seen", "thread", "program"]
