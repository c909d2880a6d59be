"""What all tests share: golden files, JSON as other programs read it, their order, and Ctrl-C that works."""

import atexit
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

# Its assertions then say what they saw, as those in test files do.
pytest.register_assert_rewrite("tests.contract")

# A shared machine may hold a test up at any moment; what must be fast is measured by `make bench`.
settings.register_profile("longhaul", deadline=None, max_examples=40)
settings.load_profile("longhaul")

# A shell starts background jobs with Ctrl-C ignored, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Far more than any test but a soak takes on a busy machine. It only ends what hangs, so that the rest runs.
DEADLINE_S, SOAK_DEADLINE_S = 900, 4 * 3600

# Where time is short, what starts Ray or hosts is skipped with a line once so many minutes are over.
MOST_MINUTES = float(os.environ.get("LONGHAUL_TEST_MINUTES", "inf"))
_BEGAN_S = time.monotonic()

# An image may tell Python to keep nothing that it compiled. Each of thousands of processes would then compile
# all that it loads, as would each start of pytest.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Ray starts its workers at 15, so that the tests of the other process would leave them next to nothing.
os.environ.setdefault("RAY_worker_niceness", "5")

_GOLDEN = Path(__file__).parent / "golden"

Golden = Callable[[str, str], None]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is loaded here is no garbage. To look through it again and again took half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Else libraries would say at the exit that what ends with this process had leaked.
        atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first: at the end, the other workers would have nothing to do beside them."""
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if time.monotonic() - _BEGAN_S > 60 * MOST_MINUTES and not _is_quick(item):
        pytest.skip(f"not run: the {MOST_MINUTES:g} minutes of LONGHAUL_TEST_MINUTES were over")
    return (yield from _until_deadline(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _until_deadline(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    return (yield from _until_deadline(item))


def _is_quick(item: pytest.Item) -> bool:
    return Path(__file__).parent / "unit" in item.path.parents


def _until_deadline(item: pytest.Item) -> Iterator[None]:
    """Fails what hangs, a test or one of its fixtures, where it stands. The other tests then run."""
    before = signal.signal(signal.SIGALRM, _end_what_hangs)
    signal.setitimer(signal.ITIMER_REAL, SOAK_DEADLINE_S if item.get_closest_marker("soak") else DEADLINE_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _end_what_hangs(_number: int, _frame: FrameType | None) -> None:
    pytest.fail("its deadline has passed: it hangs, here")


@pytest.fixture
def golden() -> Golden:
    """``golden("plan.txt", text)``: the text is what was reviewed. ``make golden`` rewrites the files."""

    def check(name: str, text: str) -> None:
        path = _GOLDEN / name
        if os.environ.get("LONGHAUL_UPDATE_GOLDEN") == "1":
            path.write_text(text)
        assert path.exists(), f"{path} is missing; `make golden` writes it, then review it"
        assert text == path.read_text(), (
            f"{path.name} differs; `make golden` rewrites it, then review the diff"
        )

    return check


def strict_json(text: str | bytes) -> Any:
    """Python alone reads NaN and Infinity; every other program calls them a mistake."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
