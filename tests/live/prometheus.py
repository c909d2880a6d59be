"""A real Prometheus on this machine, ended with the block in which it scrapes."""

import json
import shutil
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.hosts import wait_until
from tests.live.command_line import running

IS_THERE = shutil.which("prometheus") is not None
DEADLINE_S = 120


class Prometheus:
    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of each series that the query finds."""
        found = self._answer(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def newest(self, metric: str) -> list[tuple[dict[str, str], float]]:
        """Its series as they were scraped last: on a busy machine one scrape in between may be late."""
        return self.series(f"last_over_time({metric}[5m])")

    def label_values(self, metric: str, label: str) -> list[str]:
        """What a variable of a dashboard offers that is ``label_values(metric, label)``."""
        return self._answer(f"label/{label}/values?{urllib.parse.urlencode({'match[]': metric})}")

    def wait_for(self, metric: str, value: float) -> None:
        def is_so() -> bool:
            with suppress(OSError):  # It does not listen yet.
                return [found for _, found in self.series(metric)] == [value]
            return False

        wait_until(is_so, DEADLINE_S, f"{metric} {value}")

    def last_error(self) -> str:
        (target,) = self._answer("targets")["activeTargets"]
        return target["lastError"]

    def _answer(self, question: str) -> Any:
        with urllib.request.urlopen(f"{self._address}/api/v1/{question}", timeout=30) as answer:
            return json.load(answer)["data"]


@contextmanager
def scraping(folder: Path, configuration: dict[str, Any]) -> Iterator[Prometheus]:
    config = folder / "prometheus.yaml"
    config.write_text(json.dumps(configuration), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]):
        yield Prometheus(port)
