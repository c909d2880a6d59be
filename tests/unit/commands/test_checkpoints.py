"""``longhaul checkpoints``: what it says of a run, what it changes, and with which exit code it ends."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpointing.format.manifest import MANIFEST, encode_manifest, file_name, manifest_of
from checkpointing.generations.repository import Repository
from checkpointing.generations.retention import Retention
from checkpointing.log.history import Commit, Pin, Quarantine, Verified
from checkpointing.saving.local_tier import LocalTier, local_tier_name
from checkpointing.stores.local import LocalStore
from checkpointing.stores.memory import MemoryStore
from jobs.checkpoints.listing import take_inventory
from jobs.checkpoints.text import inventory_text, size_text, surplus_lines
from jobs.checkpoints.verification import judge
from jobs.cli.__main__ import main
from tests.conftest import Golden
from tests.unit.commands.test_command_line import HEAVY, loaded, run
from tests.unit.other_user import NOBODY, needs_root
from tests.unit.printed import checked
from tests.unit.small_generations import RUN, Ranks, cut_of, file_of, generation, part_of

SPEC = {"checkpoint": {"retention": {"last": 2, "best": 1}, "local": {"dir": None}}}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Three generations of two ranks in the default store."""
    repository = Repository(LocalStore(tmp_path / "results"), RUN)
    ranks = Ranks(repository, repository.take_over("me"), world_size=2)
    for step in (10, 20, 30):
        ranks.save(step)
    repository.store.put(f"runs/{RUN}/spec.json", json.dumps(SPEC).encode())
    return repository


def ask(*words: str) -> int:
    return main(["checkpoints", *words, "--run", RUN])


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Its answer as JSON."""
    assert ask(*words, "--json") == code
    printed = capsys.readouterr()
    assert printed.err == ""
    verb = "pin" if words[0] == "unpin" else words[0]
    return checked(f"checkpoints_{verb}", printed.out)


def damage(repository: Repository, place: int, rank: int = 0) -> str:
    """Flips the last bit of a file; the generation's name."""
    name = repository.view.generations[place].name
    path = f"runs/{RUN}/gen/{name}/{file_name(rank)}"
    data = bytearray(repository.store.get(path))
    data[-1] ^= 1
    repository.store.put(path, bytes(data))
    return name


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_list_is_what_was_reviewed(golden: Golden) -> None:
    """Of two lives, with every state."""
    repository = Repository(MemoryStore(), RUN)
    for life in (0, 1):
        term = repository.take_over("me", fresh=bool(life))
        for number in (1, 2, 3, 4):
            saved = generation(
                number,
                term=term,
                committed_s=100000.0 * life + 20000.0 * number,
                num_bytes=1234 * 100**number,
                epoch_end=number if number == 2 else None,
                metrics={"val_loss": 3.0 - number / 10},
            )
            repository.append(Commit(generation=saved))
            if number < 4:
                repository.append(Verified(name=saved.name))
    first, *_, third, _ = repository.view.generations
    repository.append(Pin(name=first.name))
    repository.append(Quarantine(name=third.name, reason="damaged"))
    golden("checkpoints_list.txt", inventory_text(take_inventory(repository), now_s=180030.0) + "\n")


def test_the_list_as_data_names_each_with_its_reasons(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.append(Pin(name=repository.view.generations[0].name))
    first, second, third = repository.view.generations
    found = asked(capsys, "list")
    assert [one["name"] for one in found["generations"]] == [first.name, second.name, third.name]
    assert [one["kept_for"] for one in found["generations"]] == [
        ["pin"],
        ["backup", "last"],
        ["latest", "last"],
    ]
    assert (found["latest"], found["backup"], found["best"]) == (third.name, second.name, None)
    assert found["num_bytes"] == sum(one.num_bytes for one in repository.view.generations)
    assert found["retention"]["last"] == SPEC["checkpoint"]["retention"]["last"]
    assert all(0 <= one["age_s"] < 600 and one["where"] == ["store"] for one in found["generations"])


@pytest.mark.parametrize(
    "spec",
    [
        None,
        b"{}",
        b"not JSON",
        b"[]",
        b'{"checkpoint": {"retention": {"last": "all"}}}',
        b'{"checkpoint": {"retention": {"last": 3, "of_another_version": 1}}}',
    ],
)
def test_without_a_spec_that_says_otherwise_the_defaults_hold(
    spec: bytes | None, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    if spec is None:
        repository.store.delete(f"runs/{RUN}/spec.json")
    else:
        repository.store.put(f"runs/{RUN}/spec.json", spec)
    assert asked(capsys, "list")["retention"]["last"] == 10


def test_what_lies_on_this_machines_disk_is_listed_too(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = LocalTier(tmp_path / "disk", local_tier_name(RUN, repository.lineage()), num_kept=2)
    stored, alone = cut_of(30, term=1, number=3, world_size=2), cut_of(40, term=1, number=4, world_size=2)
    for cut in (stored, alone):
        disk.keep(cut, part_of(cut, 0), memoryview(file_of(cut, 0)))
    disk.keep(alone, part_of(alone, 1), memoryview(file_of(alone, 1)))
    local = {"checkpoint": {"local": {"dir": str(tmp_path / "disk")}}}
    repository.store.put(f"runs/{RUN}/spec.json", json.dumps(local).encode())
    found = asked(capsys, "list")
    assert [(one["step"], one["where"]) for one in found["generations"]] == [
        (10, ["store"]),
        (20, ["store"]),
        (30, ["store", "local 1/2"]),
        (40, ["local 2/2"]),
    ]
    assert found["latest"] == stored.generation
    assert found["num_bytes"] == sum(one.num_bytes for one in repository.view.generations)


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/x", "/a\0b", "disk", "/\ud800", "", 7])
def test_a_folder_that_no_spec_can_name_is_not_looked_into(
    folder: object, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = LocalTier(Path("disk"), local_tier_name(RUN, repository.lineage()), num_kept=2)
    alone = cut_of(40, term=1, number=4)
    disk.keep(alone, part_of(alone, 0), memoryview(file_of(alone, 0)))
    local = {"checkpoint": {"local": {"dir": folder}}}
    repository.store.put(f"runs/{RUN}/spec.json", json.dumps(local).encode())
    assert [one["step"] for one in asked(capsys, "list")["generations"]] == [10, 20, 30]


@needs_root
def test_what_another_user_put_on_this_machines_disk_is_not_listed(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "disk"
    disk = LocalTier(folder, local_tier_name(RUN, repository.lineage()), num_kept=2)
    alone = cut_of(40, term=1, number=4)
    disk.keep(alone, part_of(alone, 0), memoryview(file_of(alone, 0)))
    os.chown(folder / "runs", NOBODY, NOBODY)
    local = {"checkpoint": {"local": {"dir": str(folder)}}}
    repository.store.put(f"runs/{RUN}/spec.json", json.dumps(local).encode())
    assert [one["step"] for one in asked(capsys, "list")["generations"]] == [10, 20, 30]


def test_one_is_shown_with_its_files_and_its_story(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = repository.view.generations[-1]
    repository.append(Pin(name=newest.name))
    shown = asked(capsys, "show", "latest")
    assert shown["generation"]["name"] == newest.name
    assert shown["contents"]["files"] == {
        part.file: part.num_bytes for part in repository.manifest(newest).parts
    }
    assert (shown["contents"]["num_tensors"], shown["contents"]["num_parameters"]) == (1, 46)
    assert [event["what"] for event in shown["events"]] == ["commit", "verified", "pin"]
    assert ask("show", "step:30") == 0
    text = capsys.readouterr().out
    expected = (
        newest.name,
        "ddp on 2 ranks",
        "verified, pinned",
        "rank-00001.safetensors  31 bytes",
        "  pin",
    )
    assert all(part in text for part in expected)


def test_one_whose_manifest_is_damaged_is_shown_as_far_as_the_log_knows_it(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = repository.view.generations[-1].name
    repository.store.put(f"runs/{RUN}/gen/{newest}/manifest.json", b"damaged")
    assert ask("show", newest) == 1
    assert "manifest.json is not the one that was committed" in capsys.readouterr().out


def test_what_is_whole_is_verified_and_nothing_is_changed(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_below(tmp_path)
    assert ask("verify") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2][:11] for line in lines[:3]] == ["ok, 2 files"] * 3
    assert lines[3] == "3 generations read back, 0 with a problem"
    assert files_below(tmp_path) == before


def test_a_flipped_bit_ends_with_1_and_only_a_wish_quarantines(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = damage(repository, 1, rank=1)
    before = files_below(tmp_path)
    assert ask("verify") == 1
    assert f"{damaged}: corrupt: " in capsys.readouterr().out
    assert files_below(tmp_path) == before
    assert ask("verify", "step:10") == 0
    assert ask("verify", "--quarantine") == 1
    states = [one.quarantined is None for one in repository.refresh().generations]
    assert states == [True, False, True]
    number = len(list(repository.records()))
    assert ask("verify", "--quarantine") == 1
    assert len(list(repository.records())) == number


def test_a_reason_that_somebody_planted_forges_no_line(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    name = repository.view.generations[1].name
    forged = "forged: ok, 2 files, 9.9 GB"
    repository.append(Quarantine(name=name, reason=f"damaged\n{forged}\r\n{forged}"))
    for told in ("verify", f"show {name}"):
        ask(*told.split())
        said = capsys.readouterr().out
        assert forged in said
        assert not [line for line in said.splitlines() if line.startswith(forged)]


def test_what_the_run_gives_up_while_it_is_read_is_not_judged(repository: Repository) -> None:
    seen = repository.view.generations
    writer = Repository(repository.store, RUN)
    writer.refresh()
    writer.retire(Retention(last=1, best=0), term=1)
    assert [found.generation.name for found in judge(repository, seen)] == [one.name for one in seen[1:]]


def test_a_verdict_as_data_says_what_is_wrong(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(repository, 2)
    found = asked(capsys, "verify", code=1)
    assert [one["is_corrupt"] for one in found["generations"]] == [False, False, True]
    assert "not what was saved" in found["generations"][2]["problem"]


def test_what_can_not_be_read_now_is_undecided_and_never_quarantined(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = repository.view.generations[-1].name
    file = tmp_path / "results" / "runs" / RUN / "gen" / newest / file_name(0)
    file.unlink()
    file.symlink_to(file)  # Opening it fails for everybody, root too.
    assert ask("verify", "--quarantine") == 3
    assert f"{newest}: can't be read now: " in capsys.readouterr().out
    assert all(one.quarantined is None for one in repository.refresh().generations)


def test_pinned_is_kept_until_it_is_unpinned(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    first = repository.view.generations[0].name
    assert ask("pin", "step:10") == 0
    assert repository.refresh().generations[0].is_pinned
    assert ask("unpin", first) == 0
    assert not repository.refresh().generations[0].is_pinned
    assert capsys.readouterr().out == f"{first}: pinned\n{first}: not pinned\n"


def test_garbage_is_only_deleted_with_yes(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = cut_of(90, term=1, number=9)
    repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    before = files_below(tmp_path)
    repository.take_over("me")
    assert ask("gc") == 0
    assert capsys.readouterr().out == (
        f"{cut.generation}: 1 object, 31 B, attempt is over\n1 object of 31 B would go; --yes deletes them\n"
    )
    assert before.keys() <= files_below(tmp_path).keys()
    found = asked(capsys, "gc", "--yes")
    assert (found["num_objects"], found["num_bytes"], found["is_deleted"]) == (1, 31, True)
    assert {name for name in before if name not in files_below(tmp_path)} == {
        name for name in before if cut.generation in name
    }
    assert ask("gc", "--yes") == 0
    assert capsys.readouterr().out == "nothing is left over\n"


def test_what_is_whole_and_not_in_the_log_is_named_and_only_deleted_if_exactly_that_is_asked_for(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = cut_of(5, term=1, number=0)
    repository.put_file(cut.generation, file_name(0), file_of(cut, 0))
    manifest = encode_manifest(manifest_of(cut, [part_of(cut, 0)]))
    repository.put_file(cut.generation, MANIFEST, manifest)
    size = size_text(31 + len(manifest))
    repository.take_over("me")
    assert surplus_lines(repository) == [
        f"1 whole generation that the log does not name: kept, {size}; "
        f"longhaul checkpoints gc --run {RUN} --store {repository.store.url} names them"
    ]
    shown = f"{cut.generation}: 2 objects, {size}, whole, but not in the log\nnothing is left over\n"
    kept = f"1 whole generation of {size} that the log does not name"
    asks = f"{kept} kept; --unnamed --yes deletes them, and they may be good\n"
    before = files_below(tmp_path)
    for words in ((), ("--yes",), ("--unnamed",)):
        assert ask("gc", *words) == 0
        assert capsys.readouterr().out == shown + asks
    assert files_below(tmp_path) == before
    assert ask("gc", "--unnamed", "--yes") == 0
    assert capsys.readouterr().out == shown + f"{kept} deleted\n"
    assert {name for name in before if name not in files_below(tmp_path)} == {
        name for name in before if cut.generation in name
    }
    assert asked(capsys, "gc")["unnamed"] == []


def test_a_start_says_what_of_the_log_is_gone_and_what_it_committed_again() -> None:
    store = MemoryStore()
    repository = Repository(store, RUN)
    ranks = Ranks(repository, repository.take_over("me"))
    saved = [ranks.save(step) for step in (10, 20)]
    for name in sorted(store.list(f"runs/{RUN}/log"))[-3:]:
        store.delete(name)
    repository = Repository(store, RUN)
    repository.take_over("me", what=saved[1])
    assert surplus_lines(repository) == [
        f"3 records of the log of {RUN} are gone, the newest ones",
        f"{saved[1]} is whole and its commit was not in the log; it was committed again",
    ]


def test_a_wrong_hint_is_mended_with_yes_alone(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("fsck") == 0
    repository.store.put(f"runs/{RUN}/hint.json", b'{"number": 2}')
    assert ask("fsck") == 1
    assert ask("fsck") == 1
    assert ask("fsck", "--yes") == 0
    assert capsys.readouterr().out.splitlines()[-2].startswith("mended: hint names record 2")
    assert asked(capsys, "fsck")["findings"] == []


def test_what_can_not_be_mended_stays_wrong(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.store.delete(f"runs/{RUN}/log/000000000002.json")
    assert ask("fsck", "--yes") == 1
    assert capsys.readouterr().out == "wrong: record 2 is gone\n3 generations in the log: 1 wrong\n"


def test_a_run_that_lost_its_log_can_be_checked_but_not_listed(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [*repository.store.list(f"runs/{RUN}/log"), f"runs/{RUN}/hint.json"]:
        repository.store.delete(name)
    assert ask("fsck") == 1
    assert "log names none of 3 generations" in capsys.readouterr().out
    assert ask("list") == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("list", "--run", "other"), ".*/results: there is no run 'other'; expected .*"),
        (("fsck", "--run", "other"), ".*/results: there is no run 'other'; expected .*"),
        (("list", "--run", "../x"), "store: .* is not a name .*"),
        (("list", "--store", "ftp://bucket"), "store: ftp:// is no kind of store.*"),
        (("list", "--store", "nowhere"), ".*/nowhere: there is no run 'r'; expected .*"),
        (("show", "step:99"), "'step:99' is none of its generations .*"),
        (("pin", "best"), "'best' is none of its generations .*"),
        (("export", "--to", "results"), "--to results: holds something already; .*"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    words: tuple[str, ...], says: str, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", words[0], "--run", RUN, *words[1:]]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(f"longhaul checkpoints: {says}\n", printed.err)


def test_asking_needs_neither_torch_nor_ray(repository: Repository) -> None:
    done = run(sys.executable, "-X", "importtime", "-m", "jobs.cli", "checkpoints", "list", "--run", RUN)
    assert done.returncode == 0
    assert "pydantic" in loaded(done.stderr)
    assert loaded(done.stderr) & HEAVY == set()
