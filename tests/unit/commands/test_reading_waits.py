"""Commands that only read give up after 30 s without an answer, or after what ``--wait`` says."""

import argparse
from collections.abc import Sequence
from typing import Any

import pytest

from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.retrying import RetryLimits
from jobs.cli.__main__ import main
from jobs.commandline import store_waits
from jobs.commandline.options import add_wait

URL = "s3://bucket/prefix"
READING: Sequence[tuple[str, ...]] = (
    ("checkpoints", "list", "--run", "r", "--store", URL),
    ("checkpoints", "show", "latest", "--run", "r", "--store", URL),
    ("status", "r", "--store", URL),
    ("runs", "--store", URL),
    ("report", "--store", URL),
    ("pull", URL, "folder"),
    ("compare", URL, URL),
    ("compare", URL, "--deadline", "30", "--tokens", "1T"),
)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RetryLimits]:
    """What each store that a command opens to read is given."""
    found: list[RetryLimits] = []

    def open_nothing(url: str, *, patience: RetryLimits, **_more: Any) -> Store:
        found.append(patience)
        raise StoreError(f"store: {url}: opened")

    monkeypatch.setattr(store_waits, "open_store", open_nothing)
    return found


@pytest.mark.parametrize("words", READING, ids=" ".join)
@pytest.mark.parametrize(("flags", "wait_s"), [((), 30.0), (("--wait", "7.5"), 7.5)])
def test_a_command_that_only_reads_waits_so_long_and_no_longer(
    words: tuple[str, ...], flags: tuple[str, ...], wait_s: float, opened: list[RetryLimits]
) -> None:
    assert main([*words, *flags]) == 2
    assert [(one.budget_s, one.is_from_start) for one in opened] == [(wait_s, True)]
    assert "--wait" in opened[0].advice


def test_a_page_gives_up_as_early_and_has_no_flag_for_it(opened: list[RetryLimits]) -> None:
    assert main(["watch", "r", "--store", URL, "--json"]) == 2
    assert [(one.budget_s, one.advice) for one in opened] == [(30.0, "")]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "1e9"])
def test_a_wait_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_wait(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--wait={text}"])
    assert f"'{text}' is " in capsys.readouterr().err
