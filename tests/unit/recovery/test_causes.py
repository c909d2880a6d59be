"""What an attempt's last words tell of."""

from dataclasses import replace

import pytest

from jobs.execution.board import Lost
from jobs.execution.causes import LOST_AT_START, LOST_CONTROLLER, Cause, cause_of
from jobs.execution.hang_detection import NETWORK_HINT
from jobs.execution.outcomes import Failed
from jobs.training.task.measurement import Corruption, Failure, Status


def lost(reason: str, *, is_silent: bool = False, is_preempted: bool = False) -> Lost:
    return Lost(
        rank=0,
        reason=reason,
        is_death=True,
        is_out_of_memory=False,
        is_silent=is_silent,
        is_preempted=is_preempted,
    )


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("ValueError: boom", "error"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", "error"),
        ("RuntimeError: [pair.cc:538] Connection closed by peer [10.0.0.2]:4711", "worker died"),
        ("DistNetworkError: connection reset by peer", "worker died"),
        (
            "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:268, remote "
            "process exited or there was a network error, NCCL version 2.21.5",
            "worker died",
        ),
        ("DistNetworkError: The client socket has timed out after 60000ms while connecting", "worker died"),
        ("DistBackendError: NCCL error in: NCCLUtils.cpp:268, invalid usage, NCCL version 2.21.5", "error"),
        (LOST_AT_START, "worker died"),
        (LOST_CONTROLLER, "worker died"),
        ("Unavailable: s3://b: connection refused", "store"),
        ("Full: /results: no space left on device", "store"),
        ("NothingToResume: none of its generations can be used", "refused"),
        ("Unfit: 000012 is of model gpt-9", "refused"),
        ("StoreKeyError: /s/runs/r/log: no record was signed with the key", "refused"),
        ("StoreKeyFileError: LONGHAUL_STORE_KEY_FILE: /k: Stale file handle", "error"),
    ],
)
def test_an_error_is_told_by_its_words(reason: str, cause: Cause) -> None:
    assert cause_of(Failure(status="crash", reason=reason, ranks=(0,))) == cause


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ("oom", "out of memory"),
        ("hang", "hang"),
        ("timeout", "hang"),
        ("invalid_loss", "invalid loss"),
        ("unschedulable", "no room"),
        ("device_mismatch", "refused"),
    ],
)
def test_what_has_a_name_of_its_own_keeps_it(status: Status, cause: Cause) -> None:
    assert cause_of(Failure(status=status, reason="whatever")) == cause


def test_what_a_comparison_of_ranks_found_is_corruption_whatever_its_words() -> None:
    found = Corruption(step=21, clean_step=10)
    assert cause_of(Failure(status="crash", reason="Connection closed", corruption=found)) == "corruption"


@pytest.mark.parametrize(
    "reason", [NETWORK_HINT, "rank 1 on b does not reach rank 0 at 10.0.0.1:9 (refused)"]
)
def test_who_is_parted_from_whom_is_not_guessed(reason: str) -> None:
    """What a rank says of rank 0 alone is one side's word."""
    assert cause_of(Failure(status="hang", reason=f"no step for 30 s; {reason}")) == "hang"


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (lost("its worker process has died"), "worker died"),
        (lost("its node is not reached any more"), "host lost"),
        (lost("its node is not reached any more", is_silent=True), "host silent"),
        (lost("its node is not reached any more", is_preempted=True), "preempted"),
    ],
)
def test_a_lost_rank_is_told_by_its_controller(found: Lost, cause: Cause) -> None:
    assert cause_of(Failure(status="crash", reason=found.reason, ranks=(0,)), found) == cause


def test_a_node_that_announced_its_end_is_not_blamed_for_devices_that_went_with_it() -> None:
    found = lost("its node is not reached any more", is_preempted=True)
    tail = ("RuntimeError: CUDA error: unknown error",)
    failure = Failure(status="crash", reason=found.reason, ranks=(0,), log_tail=tail)
    assert cause_of(failure, found) == "preempted"
    assert cause_of(failure, replace(found, is_preempted=False)) == "device failed"


def test_a_segmentation_fault_is_the_programs_own() -> None:
    found = lost("its worker process has died")
    failure = Failure(status="crash", reason=f"{found.reason}: SIGSEGV", ranks=(0,))
    assert cause_of(failure, found) == "error"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(status="crash", reason="boom"), "boom"),
        (Failure(status="crash", reason="boom", ranks=(1,)), "rank 1: boom"),
        (Failure(status="oom", reason="full", ranks=(0, 2)), "ranks 0, 2: full"),
        (Failure(status="hang", reason="rank 1 is silent for 30 s", ranks=(1,)), "rank 1 is silent for 30 s"),
    ],
)
def test_a_failed_attempt_names_its_ranks_once(failure: Failure, reason: str) -> None:
    assert Failed(failure=failure, cause="error").reason == reason
