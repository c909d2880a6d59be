"""Words of CUDA's and HIP's libraries, as others have met them, are told apart."""

import pytest

from jobs.execution.causes import Cause, cause_of
from jobs.training.health.device_errors import telling_line, trouble_of
from jobs.training.task.measurement import Failure
from tests.unit.workers.device_texts import BROKEN, DOUBTFUL, OF_THE_PROGRAM, OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("texts", "trouble"),
    [(OUT_OF_MEMORY, "out of memory"), (BROKEN, "broken"), (DOUBTFUL, "doubtful"), (OF_THE_PROGRAM, None)],
)
def test_each_text_is_told_by_its_words(texts: list[tuple[str, str, str]], trouble: str | None) -> None:
    assert {source: trouble_of(text) for source, _, text in texts} == {
        source: trouble for source, *_ in texts
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OUT_OF_MEMORY[0][2], "CUDA error: out of memory"),
        (OUT_OF_MEMORY[4][2], "Cuda failure 'out of memory'"),
        (BROKEN[2][2], "Cuda failure 999 'unknown error'"),
        (OF_THE_PROGRAM[1][2], None),
    ],
)
def test_the_line_that_tells_it_is_found_behind_others(text: str, line: str | None) -> None:
    assert telling_line(text) == line


@pytest.mark.parametrize(
    ("reason", "log_tail", "cause"),
    [
        *((f"{kind}: {text}", (), "device failed") for _, kind, text in (*BROKEN, *DOUBTFUL) if kind),
        *(("its worker process has died: SIGABRT", (text,), "device failed") for _, kind, text in DOUBTFUL),
        *((f"{kind}: {text}", (), "error") for _, kind, text in OF_THE_PROGRAM),
        ("its worker process has died", ("nothing of a device",), "error"),
    ],
)
def test_a_device_that_fails_is_a_cause_of_its_own(
    reason: str, log_tail: tuple[str, ...], cause: Cause
) -> None:
    assert cause_of(Failure(status="crash", reason=reason, ranks=(0,), log_tail=log_tail)) == cause
