"""What one rank raised for all is raised on all: the type says what to do, the text what was wrong."""

import pytest
import torch
import torch.distributed as dist

from checkpointing.errors import Corrupt, Fenced, NothingToResume, Unfit
from checkpointing.stores.contract import Denied, StoreError, Unavailable
from cluster.probe.roll_call import Unmet
from jobs.commandline.usage_error import SpecError
from jobs.training.health.failures import failure_of
from jobs.training.health.problems import PeerFailed, Problem, error_of, problem_of
from jobs.training.ranks.typed_json import decode, encode
from tests.unit.workers.device_texts import BROKEN, DOUBTFUL, OF_THE_PROGRAM, OUT_OF_MEMORY

TYPES = [Corrupt, Fenced, NothingToResume, Unfit, StoreError, Unavailable, Denied, MemoryError]


@pytest.mark.parametrize("kind", TYPES)
def test_one_of_ours_comes_back_of_its_type_with_its_text(kind: type[Exception]) -> None:
    found = error_of(decode(Problem, encode(problem_of(kind("store: /x: is away")))))
    assert (type(found), str(found)) == (kind, "store: /x: is away")


def test_what_is_derived_from_one_of_ours_comes_back_as_that() -> None:
    class Slow(Unavailable):
        pass

    assert type(error_of(problem_of(Slow("later")))) is Unavailable


def test_a_type_that_only_the_caller_knows_comes_back_too() -> None:
    others = {"SpecError": lambda text: SpecError(text.split("\n"))}
    found = error_of(problem_of(SpecError(["a: is wrong", "b: too"]), others), others)
    assert isinstance(found, SpecError)
    assert found.problems == ["a: is wrong", "b: too"]


def test_of_all_others_the_words_are_those_of_the_rank_that_raised() -> None:
    error = ValueError("no such thing")
    found = error_of(problem_of(error))
    assert isinstance(found, PeerFailed)
    assert failure_of(found, "setup", 1).reason == failure_of(error, "setup", 1).reason


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for _, kind, text in OUT_OF_MEMORY])
def test_want_of_a_devices_memory_is_so_in_whichever_words(kind: str, text: str) -> None:
    raised = {"AcceleratorError": torch.AcceleratorError, "DistBackendError": dist.DistBackendError}
    found = failure_of(raised.get(kind, RuntimeError)(text), "warmup", 0)
    assert found.status == "oom"
    assert found.reason.startswith(f"{kind}: {text.splitlines()[0]}")
    assert found.reason.endswith(": no more memory of the device")


def test_what_could_not_be_pinned_is_memory_of_the_host() -> None:
    class Tensor:
        def pin_memory(self) -> None:
            raise torch.AcceleratorError("CUDA error: out of memory")

    with pytest.raises(torch.AcceleratorError) as raised:
        Tensor().pin_memory()
    found = failure_of(raised.value, "setup", 0)
    assert found.status == "oom"
    assert found.reason == "AcceleratorError: CUDA error: out of memory: no more pinned memory of the host"


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for _, kind, text in (*BROKEN, *DOUBTFUL, *OF_THE_PROGRAM) if kind]
)
def test_other_words_of_a_device_are_no_want_of_memory(kind: str, text: str) -> None:
    assert failure_of(RuntimeError(text), "warmup", 0).status == "crash", kind


def test_what_nccl_says_of_a_device_is_in_the_reason() -> None:
    found = failure_of(dist.DistBackendError(BROKEN[2][2]), "measure", 0)
    assert found.reason.endswith(": Cuda failure 999 'unknown error'")


def test_who_is_to_blame_that_ranks_did_not_meet_is_what_they_say_and_not_who_says_it() -> None:
    failure = failure_of(Unmet("somebody else writes to the rendezvous", []), "setup", 3)
    assert (failure.status, failure.reason, failure.ranks) == (
        "hang",
        "somebody else writes to the rendezvous",
        (),
    )


def test_no_type_can_be_asked_for_that_is_not_in_the_list() -> None:
    found = error_of(Problem(type="SystemExit", text="0"))
    assert (type(found), str(found)) == (PeerFailed, "SystemExit: 0")
