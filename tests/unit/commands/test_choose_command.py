"""``longhaul compare STORE --budget .. --deadline ..``: what it says, what it refuses, how it ends."""

import json
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.unit.commands.test_compare_command import FAST_MS, OOM, SLOW_MS, alone, compare, measure
from tests.unit.printed import checked

__all__ = ["alone"]
PRICES = "local: {eur_per_device_hour: 2}\namd: {eur_per_device_hour: 1.5}\n"


@pytest.fixture
def store() -> str:
    measure("store", SLOW_MS, strategy="ddp")
    measure("store", FAST_MS, strategy="fsdp")
    measure("store", FAST_MS[:2], strategy="zero2")
    measure("store", [OOM] * 5, strategy="zero3")
    measure("store", SLOW_MS, strategy="ddp", name="other", group="amd")
    return "store"


def test_the_table_says_what_fits_and_the_last_line_answers(
    store: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    Path("prices.yaml").write_text(PRICES)
    bounds = ("--tokens", "10B", "--deadline", "100", "--budget", "9500", "--prices", "prices.yaml")
    assert compare(store, *bounds) == 0
    golden("choose.txt", capsys.readouterr().out)


def test_the_exit_code_says_whether_something_fits(store: str) -> None:
    codes = [compare(store, "--tokens", "10B", "--deadline", days) for days in ("200", "82", "1")]
    assert codes == [0, 3, 1]


def test_json_has_all_cells_and_the_answer(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(store, "--tokens", "10B", "--deadline", "1", "--json") == 1
    found = checked("compare_choose", capsys.readouterr().out)
    assert (found["schema_version"], found["verdict"], found["exit_code"]) == (1, "no", 1)
    assert (found["tokens"], found["deadline_days"], found["budget"], found["currency"]) == (
        1e10,
        1.0,
        None,
        None,
    )
    assert found["answer"].startswith("No measured cell can train 10B tokens within 1 day")
    assert [one["group"] for one in found["options"]].count("local") == 3
    assert {one["fit"] for one in found["options"]} == {"no"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--deadline", "5"), "--tokens: say how long the training is"),
        (("--budget", "5", "--tokens", "1B"), "--budget: give --prices FILE"),
        (("store", "--deadline", "5", "--tokens", "1B"), "B: --budget and --deadline look at the cells of A"),
        (("--deadline", "5", "--tokens", "1B", "--markdown"), "--markdown: is for two sides"),
        (("--deadline", "5", "--tokens", "1B", "--model", "lama-tiny"), "did you mean 'llama-tiny'?"),
        (("store", "--tokens", "1B"), "--tokens: goes with --budget or --deadline"),
        ((), "B: give what is judged; or --budget or --deadline"),
        (("--deadline", "0", "--tokens", "1B"), "'0' is no amount, expected one such as 30, 250K or 1.5M"),
        (("--deadline", "-3", "--tokens", "1B"), "'-3' is no amount"),
        (("--deadline", "5", "--tokens", "1B", "--prices", "none.yaml"), "none.yaml: can't be read"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    store: str, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = compare(store, *arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert said in capsys.readouterr().err


def test_of_several_models_one_has_to_be_named(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(Path(store).rglob("result.json"))
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "model": "qwen-tiny"}))
    assert compare(store, "--tokens", "1B", "--deadline", "500") == 2
    assert "--model: there are llama-tiny, qwen-tiny; name one" in capsys.readouterr().err
    assert compare(store, "--tokens", "1B", "--deadline", "500", "--model", "llama-tiny") == 0


def test_what_is_extrapolated_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    measure("store", SLOW_MS)
    for path in list(Path("store").rglob("result.json")):
        found = json.loads(path.read_text())
        for size in (2, 4, 8):
            name = f"{size}-{path.parent.name}"
            other = {**found, "world_size": size, "cell_id": f"{size}" * 16, "run_id": name}
            other["tokens_per_sec"] = found["tokens_per_sec"] * size / 2 * (1 - size / 200)
            place = path.parents[1] / name / "result.json"
            place.parent.mkdir()
            place.write_text(json.dumps(other))
    assert compare("store", "--tokens", "10B", "--deadline", "1000", "--extrapolate", "--json") == 0
    options = checked("compare_choose", capsys.readouterr().out)["options"]
    beyond = {one["subject"]["world_size"]: one for one in options if "extrapolated" in one["flags"]}
    assert beyond.keys() == {16, 32}
    assert all("measured within one node only" in one["flags"] for one in beyond.values())
    assert {one["fit"] for one in beyond.values()} == {"not sure"}


def test_numbers_that_can_not_be_true_are_never_sure_to_fit(capsys: pytest.CaptureFixture[str]) -> None:
    measure("store", SLOW_MS)
    for path in Path("store").rglob("result.json"):
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, "tokens_per_sec": 1e9}))
    assert compare("store", "--tokens", "1B", "--deadline", "500") == 3
    assert "numbers that can't be true" in capsys.readouterr().out
