"""What one group leaves with a checkpoint for the next, and when the next one computes the same; no torch."""

from dataclasses import replace
from typing import Any

import pytest

from jobs.execution.causes import cause_of
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.loop.hand_over import MOST_BATCHES, HandOver, hand_over_in, judge, num_batches
from jobs.training.task.measurement import Failure

LEFT = HandOver(group="nvidia", position=40, micro_batch=2, losses=(6.0, 5.5))


def verdict(*now: float, precision: str = "fp32") -> tuple[bool, str]:
    found = judge(LEFT, now, group="amd", precision=precision, step=20)
    return found.agrees, found.text


@pytest.mark.parametrize(
    ("now", "precision", "agrees"),
    [
        ((6.0, 5.5), "fp32", True),
        ((6.0005, 5.5), "fp32", True),
        ((6.0, 5.4994), "fp32", False),
        ((6.0007, 5.5), "fp32", False),
        ((6.05, 5.5), "bf16", True),
        ((6.07, 5.5), "bf16", False),
        ((6.0, float("nan")), "bf16", False),
        ((float("inf"), 5.5), "bf16", False),
    ],
)
def test_losses_agree_within_a_bound_of_the_precision(
    now: tuple[float, float], precision: str, agrees: bool
) -> None:
    assert verdict(*now, precision=precision)[0] is agrees


def test_both_figures_of_the_worst_batch_are_told() -> None:
    assert verdict(6.0001, 5.51)[1] == (
        "group amd does not compute as the checkpoint of step 20: the loss of the worst batch of 2 is 5.51, "
        "and in group nvidia, which saved it, 5.5; expected to agree within 0.0001 of it"
    )
    assert verdict(6.0001, 5.5)[1] == (
        "group amd computes as the checkpoint of step 20: the loss of the worst batch of 2 is 6.0001, and in "
        "group nvidia, which saved it, 6"
    )


def test_what_is_stored_reads_as_it_was_left() -> None:
    assert hand_over_in(LEFT.as_stored()) == LEFT
    assert LEFT.batches() == [range(40, 42), range(42, 44)]


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "nvidia",
        {},
        {**LEFT.as_stored(), "losses": ["6"]},
        {**LEFT.as_stored(), "group": 5},
        {**LEFT.as_stored(), "position": -1},
        {**LEFT.as_stored(), "position": 2**70},
        {**LEFT.as_stored(), "micro_batch": 0},
        {**LEFT.as_stored(), "micro_batch": 2**40},
        {**LEFT.as_stored(), "losses": [1.0] * (MOST_BATCHES + 1)},
    ],
)
def test_what_others_wrote_there_is_as_if_it_were_not_there(stored: Any) -> None:
    assert hand_over_in(stored) is None


@pytest.mark.parametrize(
    ("world_size", "grad_accum", "count"), [(1, 1, 1), (1, 3, 3), (2, 1, 2), (2, 8, 4), (16, 4, 4)]
)
def test_of_a_step_no_more_than_a_few_batches_are_computed_again(
    world_size: int, grad_accum: int, count: int
) -> None:
    sizes = f'"world_size": {world_size}, "micro_batch": 2, "grad_accum": {grad_accum}'
    spec = RunSpec.model_validate_json(f'{{"name": "r", "model": "llama-tiny", "steps": 1, {sizes}}}')
    assert num_batches(spec.recipe()) == count


def test_a_refused_hand_over_is_a_cause_of_its_own_whatever_its_words() -> None:
    refused = Failure(status="crash", reason="Connection closed", is_hand_over_refused=True)
    assert cause_of(refused) == "hand-over"
    assert cause_of(replace(refused, is_hand_over_refused=False)) != "hand-over"
