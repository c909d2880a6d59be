"""A headless Chromium that tests drive through its DevTools pipe: nothing listens, nothing is left behind."""

import fcntl
import json
import os
import select
import shutil
import signal
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE_S = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass(slots=True)
class Browser:
    """Messages end with a zero byte. ``events`` are those that came while something else was awaited."""

    pid: int
    read_fd: int
    write_fd: int
    num_sent: int = 0
    pending: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer; an error of the browser's raises."""
        self.num_sent += 1
        message = {"id": self.num_sent, "method": method, "params": params}
        text = json.dumps(message | ({"sessionId": session} if session else {}))
        os.write(self.write_fd, text.encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while (found := self._next(deadline)).get("id") != self.num_sent:
            self.events.append(found)
        assert "error" not in found, f"{method}: {found['error']}"
        return dict(found["result"])

    def wait_for(self, method: str) -> dict[str, Any]:
        """The next such event, or one that came already."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := next((one for one in self.events if one.get("method") == method), None)):
            self.events.append(self._next(deadline))
        self.events.remove(found)
        return found

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.pending:
            ready, _, _ = select.select([self.read_fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser said nothing in time"
            received = os.read(self.read_fd, 1 << 16)
            assert received, "the browser is gone"
            self.pending += received
        message, _, self.pending = self.pending.partition(b"\0")
        return dict(json.loads(message))


@dataclass(frozen=True, slots=True)
class Tab:
    browser: Browser
    session: str

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """What the expression is, as data; an exception in it raises."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: Literal["Enter", "Tab"]) -> None:
        code = {"Enter": 13, "Tab": 9}[key]
        text = "\r" if key == "Enter" else ""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self) -> bytes:
        return b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def seen(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all such events so far."""
        return [event["params"] for event in self.browser.events if event.get("method") == method]


@contextmanager
def running_chromium(program: str, profile: Path) -> Iterator[Browser]:
    """Ended with all of its processes when the block is left."""
    here_reads, there_writes = _high_pipe()
    there_reads, here_writes = _high_pipe()
    log = os.open(profile.with_suffix(".log"), os.O_CREAT | os.O_WRONLY, 0o600)
    pid = os.posix_spawn(
        program,
        [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        {**os.environ, "TMPDIR": str(profile.parent)},
        setpgroup=0,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, there_reads, 3),
            (os.POSIX_SPAWN_DUP2, there_writes, 4),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ],
    )
    for theirs in (there_reads, there_writes, log):
        os.close(theirs)
    try:
        yield Browser(pid, here_reads, here_writes)
    finally:
        os.close(here_writes)
        os.close(here_reads)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def open_page(
    browser: Browser,
    page: Path | str,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
    media: Literal["screen", "print"] = "screen",
) -> Iterator[Tab]:
    """A file or an address, loaded, and watched from before its first byte."""
    browser.events.clear()
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    tab = Tab(browser, session)
    for domain in ("Page", "Runtime", "Log", "Network"):
        tab.call(f"{domain}.enable")
    tab.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=width < 600,
    )
    stop_requests = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.call("Emulation.setEmulatedMedia", media=media, features=stop_requests)
    tab.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
    browser.wait_for("Page.loadEventFired")
    try:
        yield tab
    finally:
        browser.call("Target.closeTarget", targetId=target)


def _high_pipe() -> tuple[int, int]:
    """Above the numbers that the browser wants its own ends to have."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in low)
    for fd in low:
        os.close(fd)
    return high[0], high[1]
