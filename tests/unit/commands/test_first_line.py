"""Whoever starts a sweep or a training on a laptop reads at once what is going on, before libraries load."""

import selectors
import subprocess
import sys
from pathlib import Path

import pytest

# In the place of what takes seconds to load: it never ends.
NEVER_LOADED = "import time\ntime.sleep(3600)\n"
SWEEP = """
name: s
models: [llama-tiny]
axes: {strategy: [ddp], world_size: [1], seq_len: [32]}
measure: {steps: 2, warmup: 1}
repeats: 1
"""
TRAIN = "name: r\nmodel: llama-tiny\nseq_len: 32\nsteps: 2\n"


@pytest.mark.parametrize(("command", "spec"), [("sweep", SWEEP), ("train", TRAIN)])
def test_the_first_line_comes_before_ray_and_torch_are_loaded(
    tmp_path: Path, command: str, spec: str
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    for library in ("ray", "torch", "deepspeed"):
        (slow / f"{library}.py").write_text(NEVER_LOADED, encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    program = (
        f"import sys; sys.path.insert(0, {str(slow)!r}); from jobs.cli.__main__ import main; sys.exit(main())"
    )
    words = [sys.executable, "-c", program, command, "spec.yaml", "--store", "store"]
    with (
        subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        selectors.DefaultSelector() as answers,
    ):
        assert process.stdout is not None
        answers.register(process.stdout, selectors.EVENT_READ)
        try:
            assert answers.select(60), "nothing was said"
            assert "starting Ray on this machine" in process.stdout.readline()
        finally:
            process.kill()
