"""Two faults at once in a run over Ray: whatever one would have left to go on with is gone by the other."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.opening import open_store
from tests.live.attempts import digests_of, newest_manifest
from tests.live.command_line import run, running, write_spec
from tests.live.recovery.test_recovering import PATIENCE_S
from tests.live.recovery.test_survivors import RUN
from tests.live.runs.test_train import a_worker_of, train_command, wait_until
from tests.live.servers import BUCKET, HOST, S3_KEYS, make_bucket, moto
from tests.proxy import Killed, Nothing, Proxy

pytestmark = pytest.mark.soak

# So many that it is still at work when it is to be struck, which is behind what the store has first.
LONGER = RUN.replace("steps: 300", "steps: 600")
BEHIND = r"step [1-5]\d\d/600"
LEFT = r"(\d+)-t1-\w+\.1000000000: chosen, in the hosts' memory alone"


def has_said(told: Path, pattern: str) -> Callable[[], bool]:
    return lambda: re.search(pattern, told.read_text()) is not None


def test_a_rank_is_lost_while_the_store_is_away_and_no_finished_step_is_lost_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, told = write_spec(tmp_path, LONGER), tmp_path / "told.txt"
    store = f"s3://{BUCKET}/store"
    with moto(tmp_path) as port, Proxy(port) as proxy, told.open("w") as output:
        make_bucket(f"http://{HOST}:{port}", S3_KEYS)
        keys = {**S3_KEYS, "AWS_ENDPOINT_URL": proxy.url}
        command = [*train_command(spec, tmp_path), "--store", store]
        with running(command, output=output, **keys) as process:
            wait_until(has_said(told, BEHIND), PATIENCE_S)
            proxy.become(Killed())
            a_worker_of(process).kill()
            wait_until(has_said(told, r"attempt 1 failed: .* in 0 s, once the store answers"), PATIENCE_S)
            proxy.become(Nothing())
            process.wait(PATIENCE_S)
        text = told.read_text()
        assert process.returncode == 0, text
        came_from = re.search(LEFT, text)
        assert came_from and int(came_from[1]) > 100, text
        for name, value in {**S3_KEYS, "AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}.items():
            monkeypatch.setenv(name, value)
        repository = Repository(open_store(store), "r")
        ours = repository.manifest(repository.refresh().generations[-1])
    alone = run(train_command(spec, tmp_path / "alone"), deadline_s=PATIENCE_S)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert digests_of(ours) == digests_of(newest_manifest(tmp_path / "alone", "r"))
