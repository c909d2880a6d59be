"""The one error of ``jobs.durable``, and what becomes one."""

from collections.abc import Iterator
from contextlib import contextmanager

from checkpointing.errors import Fenced, NothingToResume, Unfit
from checkpointing.stores.contract import StoreError
from cluster.probe.meeting import Stranger
from cluster.probe.roll_call import Unmet
from jobs.commandline.usage_error import SpecError
from jobs.training.health.problems import PeerFailed
from jobs.training.loop.rank_checks import NotThere
from jobs.training.ranks.this_rank import NoGroup
from jobs.training.state.plain_state import NoPlainState

_EXPECTED = (
    SpecError, StoreError, NothingToResume, Unfit, Fenced, NoPlainState, NoGroup, NotThere, PeerFailed,
    Stranger, Unmet,
)  # fmt: skip


class DurableError(Exception):
    """The run can't go on. The text is for the user: what was found, and what to do."""


@contextmanager
def in_one_line(run: str) -> Iterator[None]:
    """Turns what must be expected to go wrong into a ``DurableError`` that begins with the run's name."""
    try:
        yield
    except (*_EXPECTED, DurableError) as error:
        text = str(error)
        raise DurableError(text if text.startswith(f"{run}: ") else f"{run}: {text}") from None
