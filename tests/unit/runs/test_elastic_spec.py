"""What a run's spec says of its world sizes and its groups, and what it may not say."""

from pathlib import Path

import pytest

from jobs.commandline.usage_error import SpecError
from jobs.recovery.world_size import ResizeWaits
from jobs.spec_schema.run_spec import RunSpec

RUN = "name: r\nmodel: llama-tiny\nsteps: 4\n"
RANGE = "world_size: {min: 1, max: 4}\nmicro_batch: 2\ngrad_accum: 3\n"


def load(tmp_path: Path, more: str = "") -> RunSpec:
    path = tmp_path / "spec.yaml"
    path.write_text(RUN + more)
    return RunSpec.load(path, [])


def test_a_number_is_the_only_size(tmp_path: Path) -> None:
    spec = load(tmp_path, "world_size: 3\ngrad_accum: 2")
    assert spec.sizes == (3,)
    assert (spec.recipe().world_size, spec.recipe().grad_accum) == (3, 2)


def test_a_step_is_the_same_at_every_size_and_the_largest_has_the_passes_that_were_asked_for(
    tmp_path: Path,
) -> None:
    spec = load(tmp_path, RANGE)
    recipes = [spec.recipe(size) for size in spec.sizes]
    assert [(recipe.world_size, recipe.grad_accum) for recipe in recipes] == [(1, 12), (2, 6), (3, 4), (4, 3)]
    assert {(recipe.sequences_per_step, recipe.micro_batch) for recipe in recipes} == {(24, 2)}
    assert spec.recipe() == recipes[-1]


def test_sizes_between_that_do_not_divide_are_left_out(tmp_path: Path) -> None:
    spec = load(tmp_path, "world_size: {min: 1, max: 4}\neval: {every_steps: 5, samples: 8}")
    assert spec.sizes == (1, 2, 4)


def test_what_is_not_evaluated_need_not_be_divided(tmp_path: Path) -> None:
    assert load(tmp_path, "world_size: 3\neval: {samples: 64}").sizes == (3,)


def test_neighbours_that_share_a_copy_divide_every_size(tmp_path: Path) -> None:
    within = "strategy: fsdp\ngrad_accum: 4\nworld_size: {min: 2, max: 8}\nshard_within: "
    assert load(tmp_path, within + "2").sizes == (2, 4, 8)
    assert load(tmp_path, within + "2").recipe(4).num_copies == 2
    with pytest.raises(SpecError, match=r"shard_within: 4 does not divide 2 ranks; .* one of 1, 2$"):
        load(tmp_path, within + "4")


@pytest.mark.parametrize(
    ("written", "groups", "stored"),
    [
        ("", ("local",), "local"),
        ("group: amd", ("amd",), "amd"),
        ("group: [amd]", ("amd",), "amd"),
        ("group: [nvidia, amd]", ("nvidia", "amd"), ["nvidia", "amd"]),
    ],
)
def test_one_group_is_stored_as_its_name_and_several_as_a_list(
    written: str, groups: tuple[str, ...], stored: object, tmp_path: Path
) -> None:
    spec = load(tmp_path, written)
    assert spec.group == groups
    assert spec.model_dump(mode="json")["group"] == stored
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("written", ["world_size: 3\n", "world_size:\n  min: 1\n  max: 3\n"])
def test_what_is_stored_with_the_run_reads_as_it_was_written(written: str, tmp_path: Path) -> None:
    spec = load(tmp_path, written)
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.model_dump(mode="json")["world_size"] in (3, {"min": 1, "max": 3})


def test_patience_is_the_spec_s(tmp_path: Path) -> None:
    spec = load(tmp_path, RANGE + "elastic: {wait_for_spare_s: 0, grow_after_s: 5}")
    assert spec.elastic == ResizeWaits(wait_for_spare_s=0, grow_after_s=5)
    assert load(tmp_path).elastic == ResizeWaits()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "world_size: 0",
            "world_size: found 0, expected a number of ranks, or both of {min: 1, max: 4}",
        ),
        ("world_size: true", "world_size: found True, expected a number of ranks, or both of"),
        ("world_size: 1.5", "world_size: found 1.5, expected a number of ranks, or both of"),
        ("world_size: two", "world_size: found 'two', expected a number of ranks, or both of"),
        ("world_size: {max: 4}", "world_size: found {'max': 4}, expected a number of ranks, or both of"),
        ("world_size: {min: 0, max: 4}", "world_size.min: found 0, expected at least 1"),
        ("world_size: {min: 1, max: many}", "world_size.max: found 'many', expected a whole number"),
        ("world_size: {min: 1, max: 4, mx: 3}", "world_size.mx: is not a key here (min, max)"),
        ("world_size: {min: 4, max: 1}", "world_size: min 4 is more than max 1"),
        (
            "world_size: {min: 3, max: 4}",
            "world_size: the 4 sequences of a step can't be divided among 3 ranks with micro-batches of 1; "
            "sizes that do: 1, 2, 4",
        ),
        (
            "world_size: {min: 2, max: 3}\ngrad_accum: 2\neval: {every_steps: 1, samples: 8}",
            "eval.samples: 8 can't be divided among 3 ranks with micro-batches of 1; "
            "expected a multiple of 6",
        ),
        ("elastic: {grow_after_s: -1}", "elastic.grow_after_s: found -1, expected at least 0"),
        ("elastic: {grow: 3}", "elastic.grow: is not a key here (wait_for_spare_s, grow_after_s)"),
    ],
)
def test_what_can_not_be_meant_is_one_line(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, more)
    (line,) = str(caught.value).splitlines()
    assert line.removeprefix(f"{tmp_path / 'spec.yaml'}: ").startswith(says)
