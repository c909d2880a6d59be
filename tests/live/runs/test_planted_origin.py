"""With the store's key, a run begins from another one only by what the key signed, or what is named."""

import sys
from pathlib import Path

from checkpointing.generations.repository import Repository
from checkpointing.log.signing import VARIABLE
from checkpointing.stores.local import LocalStore
from tests.live.command_line import run, write_spec
from tests.live.forked_command import run_forked

SPEC = """
name: r
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
steps: 4
data: {samples: 64}
checkpoint: {every_steps: 2, on_busy: wait, retention: {epochs: false}}
"""
# The driver's own look comes first, and then the rank's.
EXCHANGED = """
import sys
from checkpointing.generations.repository import Repository
from jobs.cli.__main__ import main

looks, refuse = [], Repository.refuse_as_origin

def refuse_later(repository, what):
    looks.append(what)
    if len(looks) > 1:
        refuse(repository, what)

Repository.refuse_as_origin = refuse_later
sys.exit(main(sys.argv[1:]))
"""


def test_a_log_that_was_exchanged_once_the_driver_looked_at_it_is_not_begun_from(tmp_path: Path) -> None:
    """And where the checkpoint is named, the run begins from just that one."""
    store, key = tmp_path / "store", tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    spec = str(write_spec(tmp_path, SPEC))
    flags = ["train", spec, "--store", str(store), "--executor", "inline", "--no-retry"]
    done = run_forked([sys.executable, "-m", "jobs.cli", *flags, "--run", "planted"])
    assert done.returncode == 0, done.stderr
    first = Repository(LocalStore(store), "planted").refresh().generations[0]

    place = f"{store}/runs/planted"
    begin = [*flags, "--set", "steps=6", "--resume", place]
    done = run([sys.executable, "-c", EXCHANGED, *begin], **{VARIABLE: str(key)})
    assert done.returncode == 2, done.stderr
    assert f"--resume {place}/gen/NAME" in done.stderr
    assert not [*LocalStore(store).list("runs/r/gen")]

    begin[-1] += f"/gen/{first.name}"
    done = run_forked([sys.executable, "-m", "jobs.cli", *begin], **{VARIABLE: str(key)})
    assert done.returncode == 0, done.stderr
    assert f"{first.name}: chosen" in done.stdout + done.stderr
