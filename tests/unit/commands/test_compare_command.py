"""``longhaul compare``: what is read, what is said, and with which exit code it ends."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.cli.__main__ import main
from jobs.reports.gate import whole
from jobs.spec_schema.sweep_spec import SweepSpec
from jobs.training.task.measurement import Failure
from reporting.analysis.comparing import SetComparison
from tests.conftest import Golden
from tests.unit.builders import group, measurement, record, run_of, sweep
from tests.unit.printed import checked

SLOW_MS = (101.0, 100.0, 99.0, 100.5, 99.5)
FAST_MS = tuple(0.9 * value for value in SLOW_MS)
OOM = Failure(status="oom", reason="no more", phase="window")
CRASH = Failure(status="crash", reason="it fell", phase="window")
LOST = Failure(status="lost", reason="the node went", phase="window")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)


def measure(
    store: str,
    step_ms: Sequence[float | Failure],
    *,
    name: str = "trial",
    strategy: str = "ddp",
    **changes: Any,
) -> None:
    """One cell: a run per step time in milliseconds, or per failure."""
    spec = sweep(
        name=name, axes={"strategy": [strategy], "world_size": [2]}, groups=[changes.get("group", "local")]
    )
    for repeat, taken in enumerate(step_ms, start=1):
        write(store, spec, repeat, taken, changes)


def write(store: str, spec: SweepSpec, repeat: int, taken: float | Failure, changes: dict[str, Any]) -> None:
    run = run_of(spec, repeat)
    outcome = (
        taken if isinstance(taken, Failure) else measurement(run.run_id, num_ranks=2, step_s=taken / 1e3)
    )
    found = record(spec, run, outcome, group(changes.get("group", "local"), (8,))).to_dict()
    if found["environment"]:
        found["environment"]["commit"] = changes.get("commit")
        found["environment"]["torch"] = changes.get("torch", "2.13.0")
    place = Path(store, "sweeps", spec.name, "runs", run.name, "result.json")
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(found))


def compare(*arguments: str) -> int:
    return main(["compare", *arguments])


def test_the_table_says_who_is_faster_and_what_else_differed(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    for store, torch in (("old", "2.12.0"), ("new", "2.13.0")):
        measure(store, SLOW_MS, strategy="ddp", torch=torch)
        measure(store, SLOW_MS if store == "old" else FAST_MS, strategy="fsdp", torch=torch)
        measure(store, FAST_MS if store == "old" else SLOW_MS, strategy="zero1", torch=torch)
        measure(store, SLOW_MS[:3], strategy="zero2", torch=torch)
    measure("old", SLOW_MS, strategy="zero3", name="large")
    measure("new", [OOM] * 5, strategy="zero3", name="large")
    measure("old", SLOW_MS, strategy="ddp", name="gone", group="amd")
    assert compare("old", "new") == 1
    golden("compare.txt", capsys.readouterr().out)
    assert compare("old", "new", "--markdown") == 1
    golden("compare.md", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (SLOW_MS, SLOW_MS, 0),
        (SLOW_MS, FAST_MS, 0),
        (FAST_MS, SLOW_MS, 1),
        (SLOW_MS, [1.01 * value for value in SLOW_MS], 0),
        ([100.0, 100.1, 99.9, 100.0, 100.1], [102.0, 102.1, 101.9, 102.0, 102.1], 0),
        (SLOW_MS[:3], [100.9, 100.0, 99.0], 3),
        (SLOW_MS, [OOM] * 5, 1),
        (SLOW_MS, [CRASH] * 5, 1),
        (SLOW_MS, [LOST] * 5, 3),
        ([OOM] * 5, SLOW_MS, 0),
        ([OOM] * 5, [OOM] * 5, 0),
        ([OOM] * 5, [CRASH] * 5, 3),
        ([80.0, 90.0, 100.0, 110.0, 120.0], [75.0, 91.0, 99.0, 112.0, 119.0], 3),
    ],
    ids=[
        "equal", "faster", "slower", "within the threshold", "surely slower within it",
        "too few", "out of memory now", "crashes now",
        "not tried", "failed before", "known", "fails in another way", "noisy",
    ],
)  # fmt: skip
def test_the_exit_code_is_the_answer(old: Sequence[Any], new: Sequence[Any], code: int) -> None:
    measure("old", old)
    measure("new", new)
    assert compare("old", "new") == code


def test_the_same_results_pass_however_noisy_or_few_they_are() -> None:
    measure("all", [80.0, 90.0, 100.0, 110.0, 120.0])
    measure("all", SLOW_MS[:2], strategy="fsdp")
    measure("all", [OOM] * 5, strategy="zero1")
    assert compare("all", "all") == 0


def as_short_runs(store: str, **changes: Any) -> None:
    """Turns all results of a store into those of a search, or into what ``changes`` says."""
    for place in Path(store).rglob("result.json"):
        found = json.loads(place.read_text(encoding="utf-8"))
        place.write_text(json.dumps(found | (changes or {"rung": 1})), encoding="utf-8")


@pytest.mark.parametrize("side", ["old", "new"])
def test_short_runs_of_a_search_are_no_results_of_a_side(
    side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measure("old", SLOW_MS)
    measure("new", SLOW_MS)
    as_short_runs(side)
    assert compare("old", "new") == 2
    said = f"{side}: there are no results but 5 short runs of a search, which are no measurements"
    assert said in capsys.readouterr().err


def test_short_runs_beside_measurements_have_no_say() -> None:
    measure("old", FAST_MS)
    measure("old", FAST_MS, strategy="fsdp", name="search")
    measure("new", FAST_MS)
    measure("new", SLOW_MS, strategy="fsdp", name="search")
    as_short_runs("old/sweeps/search")
    as_short_runs("new/sweeps/search")
    assert compare("old", "new") == 0


def test_a_search_for_the_largest_micro_batch_that_goes_on_has_not_run_out_of_memory() -> None:
    search = {"asked": "max", "question": "q", "num_trials": 2, "smallest_failed": 4, "fitted": [2],
              "failed": [4]}  # fmt: skip
    measure("old", SLOW_MS)
    measure("new", [OOM] * 5)
    as_short_runs("new", batch_search={**search, "is_over": True}, per_device_batch=1)
    as_short_runs("old", batch_search={**search, "is_over": True}, per_device_batch=1)
    assert compare("old", "new") == 1
    as_short_runs("new", batch_search={**search, "is_over": False}, per_device_batch=1)
    assert compare("old", "new") == 2


def test_where_nothing_is_on_both_sides_nothing_passes() -> None:
    nothing = SetComparison(comparisons=(), only_in_baseline=(), only_in_other=())
    assert whole(nothing, 0.02) == "undecided"


def test_slower_outweighs_undecided() -> None:
    measure("old", FAST_MS)
    measure("new", SLOW_MS)
    measure("old", SLOW_MS, strategy="fsdp")
    assert compare("old", "new") == 1


def test_what_is_missing_in_b_is_undecided_and_what_is_new_there_is_not() -> None:
    measure("old", SLOW_MS)
    measure("new", SLOW_MS)
    measure("new", SLOW_MS, strategy="fsdp")
    assert compare("old", "new") == 0
    assert compare("new", "old") == 3


@pytest.mark.parametrize(("threshold", "code"), [("2%", 1), ("0.02", 1), ("20%", 0), ("0.2", 0)])
def test_the_threshold_is_a_share(threshold: str, code: int) -> None:
    measure("old", FAST_MS)
    measure("new", SLOW_MS)
    assert compare("old", "new", "--threshold", threshold) == code


@pytest.mark.parametrize(
    ("baseline", "other"),
    [
        ("all#sweep=monday", "all#sweep=friday"),
        ("all#commit=aaaa", "all#commit=bbbb"),
        ("all#commit=aaaa,sweep=monday", "all#sweep=friday&commit=bbbb"),
        ("all#sweep=monday", "all#sweep=friday&sweep=sunday"),
    ],
)
def test_a_store_is_compared_with_itself_by_narrowing(baseline: str, other: str) -> None:
    measure("all", SLOW_MS, name="monday", commit="aaaa1111")
    measure("all", FAST_MS, name="friday", commit="bbbb2222")
    assert compare(baseline, other) == 0
    assert compare(other, baseline) == 1


def test_groups_are_compared_by_narrowing(capsys: pytest.CaptureFixture[str]) -> None:
    measure("all", SLOW_MS, group="nvidia")
    measure("all", FAST_MS, group="amd")
    assert compare("all#group=nvidia", "all#group=amd") == 0
    assert "amd / nvidia" in capsys.readouterr().out
    assert compare("all#group=amd", "all#group=nvidia") == 1


@pytest.mark.parametrize(
    ("baseline", "says"),
    [
        ("all#grup=a", "all#grup=a: 'grup' narrows nothing (sweep, group, commit); did you mean 'group'?"),
        ("all#group", "all#group: 'group' has no value, expected group=VALUE"),
        ("#group=a", "'#group=a' names no store, expected URL or URL#sweep=VALUE"),
        ("ftp://host", "store: ftp:// is no kind of store"),
        ("nowhere", "nowhere: there are no results; `longhaul sweep` or `longhaul import` puts some there"),
        ("all#group=nvidai", "of group nvidai (there: nvidia); did you mean 'nvidia'?"),
        ("all#sweep=tria", "of sweep tria (there: trial); did you mean 'trial'?"),
        ("all#sweep=../..", "of sweep ../.. (there: trial)"),
        ("all#commit=feed", "of commit feed (there: aaaa1111)"),
        ("all#group=nvidia,commit=feed", "of commit feed (there: aaaa1111)"),
        ("all#group=nvidia,sweep=other", "there are no results that fit all of it"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    baseline: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measure("all", SLOW_MS, group="nvidia", commit="aaaa1111")
    if "other" in baseline:
        measure("all", SLOW_MS, name="other", group="amd", commit="aaaa1111")
    assert compare(baseline, "all") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("longhaul compare: ")
    assert says in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("threshold", ["2", "-1%", "much", "100%", "nan"])
def test_a_threshold_that_is_no_share_ends_with_2(threshold: str) -> None:
    with pytest.raises(SystemExit) as ended:
        compare("old", "new", f"--threshold={threshold}")
    assert ended.value.code == 2


def test_a_store_that_is_away_leaves_it_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    measure("old", SLOW_MS)
    Path("new").mkdir()
    Path("new/sweeps").symlink_to("sweeps")  # it can't be listed
    assert compare("old", "new") == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "/new: sweeps is a link, and inside a store none is followed" in printed.err


def test_results_that_can_not_be_read_leave_it_undecided_and_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    measure("old", SLOW_MS)
    measure("new", SLOW_MS)
    broken = sorted(Path("new").rglob("result.json"))[0]
    broken.write_bytes(broken.read_bytes()[:50])
    assert compare("old", "new") == 3
    printed = capsys.readouterr()
    assert f"{broken.relative_to('new')}: not JSON" in printed.err
    assert "5/4" in printed.out
    assert f"since 1 file could not be read: {broken.relative_to('new')}\n" in printed.out
    assert printed.out.endswith("threshold 2 %: undecided\n")
    assert compare("old", "new", "--json") == 3
    (unread,) = checked("compare", capsys.readouterr().out)["unread"]
    assert unread["name"] == str(broken.relative_to("new"))
    assert compare("old", "new", "--markdown") == 3
    assert "1 file could not be read" in capsys.readouterr().out


def test_what_is_worse_is_worse_whatever_else_can_not_be_read() -> None:
    measure("old", FAST_MS)
    measure("new", SLOW_MS)
    Path("new/sweeps/trial/runs/broken").mkdir()
    Path("new/sweeps/trial/runs/broken/result.json").write_text("{")
    assert compare("old", "new") == 1


@pytest.mark.parametrize("form", [[], ["--markdown"], ["--budget=1", "--tokens=1B", "--prices=p.yaml"]])
def test_a_name_forges_no_line(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    forged = "B against A: equivalent in 1 of 1 cell; threshold 2 %: B is not worse"
    measure("old", SLOW_MS, torch=f"2\n{forged}")
    for file in sorted(Path("old").rglob("result.json"))[:2]:
        file.write_text(file.read_text().replace('"group": "local"', f'"group": "a\\n{forged}"'))
    measure("new", SLOW_MS, torch=f"3\n{forged}")
    Path("p.yaml").write_text("local: {usd_per_device_hour: 1}")
    compare("old", *([] if form[1:] else ["new"]), *form)
    assert forged not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("baseline", ["old", "nowhere"])
def test_the_garbage_collector_works_again_afterwards(baseline: str) -> None:
    measure("old", SLOW_MS)
    assert compare(baseline, "old") == (0 if baseline == "old" else 2)
    assert gc.isenabled()


def test_json_has_every_comparison_and_nothing_else_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    measure("old", SLOW_MS, torch="2.12.0")
    measure("new", FAST_MS)
    measure("new", SLOW_MS, strategy="fsdp")
    assert compare("old", "new", "--json", "--threshold", "3%") == 0
    found = checked("compare", capsys.readouterr().out)
    (comparison,) = found["comparisons"]
    assert comparison["ratio"] == pytest.approx(1 / 0.9)
    assert comparison["differences"] == [{"what": "torch", "baseline": "2.12.0", "other": "2.13.0"}]
    assert (comparison["verdict"], found["threshold"]) == ("faster", 0.03)
    assert (found["baseline"], found["other"]["num_runs"]) == ({"target": "old", "num_runs": 5}, 10)
    assert [each["subject"]["strategy"] for each in found["only_in_other"]] == ["fsdp"]
    assert found["summary"] == "B against A: faster in 1, new in 1 of 2 cells"
    assert (found["schema_version"], found["verdict"], found["exit_code"]) == (1, "passes", 0)
    assert comparison["gate"] == "passes"


def test_a_name_cannot_break_out_of_the_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    measure("old", SLOW_MS, torch="<b>|`1`")
    measure("new", FAST_MS)
    assert compare("old", "new", "--markdown") == 0
    printed = capsys.readouterr().out
    assert "&lt;b&gt;\\|\\`1\\`" in printed
    assert "<b>" not in printed


def test_a_small_threshold_does_not_ask_for_more_than_noise_allows() -> None:
    measure("old", SLOW_MS)
    measure("new", [value + 0.01 for value in SLOW_MS])
    assert compare("old", "new", "--threshold", "0.1%") == 0
