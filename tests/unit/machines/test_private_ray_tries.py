"""A Ray of our own that does not start: another try, then one line."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from cluster.inventory import DidNotStart
from cluster.local_ray.private_ray import _said_in_one_line, _start_in, private_ray


class Tries:
    """Of which the first ``num_slow`` fail."""

    def __init__(self, num_slow: int) -> None:
        self.num_slow = num_slow
        self.log: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.log.append("start")
        try:
            with _said_in_one_line():
                if self.log.count("start") <= self.num_slow:
                    # As Ray raises it, with more lines than one.
                    raise Exception("The current node timed out\nduring startup")
            yield
        finally:
            self.log.append("end")


def test_a_slow_start_is_tried_again_when_nothing_is_left_of_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = Tries(num_slow=2)
    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        _start_in(stack, tries)
        assert tries.log == ["start", "end", "start", "end", "start"]
    assert tries.log[-1] == "end"
    assert caplog.messages == ["Ray did not start (Exception: The current node timed out): another try"] * 2


def test_after_three_tries_one_line_says_so() -> None:
    tries = Tries(num_slow=3)
    with pytest.raises(DidNotStart) as problem, ExitStack() as stack:
        _start_in(stack, tries)
    assert "\n" not in str(problem.value)
    assert str(problem.value).startswith("Ray did not start on this machine, in 3 tries (Exception: The cur")
    assert tries.log == ["start", "end"] * 3


def test_what_comes_of_ctrl_c_is_no_failed_start() -> None:
    with pytest.raises(KeyboardInterrupt), _said_in_one_line():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupted:
            raise RuntimeError("Error calling __set_name__") from interrupted


def test_where_its_files_do_not_fit_it_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    tried: list[str] = []
    with pytest.raises(DidNotStart) as problem, private_ray(aside=lambda: tried.append("try")):
        pass
    assert " has 0.0 MB free, and Ray's files on this machine need 50 MB; make room there" in str(
        problem.value
    )
    assert tried == []
