"""What a run keeps of the data that it reads, and what a report says of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpointing.generations.repository import Repository
from checkpointing.stores.memory import MemoryStore
from jobs.cli.__main__ import main
from jobs.runs.data_check.find import find_data
from jobs.runs.data_read import places, record
from jobs.runs.data_read.record import read_sources
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.tasks import Tasks, beginning
from jobs.spec_schema.run_spec import RunSpec
from reporting.analysis.read_data import HEADS, cells, what_is_unread
from reporting.long_runs.summarising import long_runs
from reporting.page.sections.trainings import trainings
from reporting.recording.read_data import DocumentFacts, ReadSource, decode, encode, name_of
from tests.unit.builders import group
from tests.unit.example_findings import example_findings
from tests.unit.recorded import attempt, leave, step_row

TEXTS = {"web": ["one text", "one text", "another " * 9], "code": ["x = 1"] * 30}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """Of a run on two packed sources."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    for name, texts in TEXTS.items():
        lines = [json.dumps({"text": text}) for text in texts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        assert main(["pack", f"{name}.jsonl", "--out", name]) == 0
    sources = [{"name": name, "path": name, "weight": weight} for name, weight in (("web", 3), ("code", 1))]
    common = {"name": "r", "model": "llama-tiny", "steps": 2, "seq_len": 8, "micro_batch": 1}
    data = {"kind": "tokens", "sources": sources}
    return RunSpec.model_validate({**common, "eval": {"samples": 2}, "data": data})


def begun(store: MemoryStore, spec: RunSpec, *, fresh: bool = False) -> None:
    repository = Repository(store, "r")
    presence = DriverPresence(store, "r", is_wanted=False)
    begins = beginning("latest", repository, spec, fresh=fresh)
    Tasks(spec, repository, begins, find_data(spec), presence).make(group(), 1, 0.0)


def test_a_run_keeps_what_its_driver_knows_of_its_data(spec: RunSpec) -> None:
    store = MemoryStore()
    begun(store, spec)
    web, code = decode(store.get(name_of("r")))
    assert [(one.name, one.share, one.num_tokens, one.tokenizer) for one in (web, code)] == [
        ("web", 0.75, 2 * 9 + 73, "bytes"),
        ("code", 0.25, 30 * 6, "bytes"),
    ]
    assert web.documents and code.documents and not web.unread
    assert (web.documents.num_documents, web.documents.num_copies, code.documents.num_copies) == (3, 1, 29)
    assert web.documents.num_cut == 2  # the long one, and the second, which is cut by a sample's end

    begun(store, spec.model_copy(update={"data": RunSpec.model_validate(SYNTHETIC).data}), fresh=True)
    assert decode(store.get(name_of("r"))) == ()


SYNTHETIC = {"name": "r", "model": "llama-tiny", "steps": 2}


def test_a_run_on_synthetic_samples_keeps_nothing_of_data(spec: RunSpec) -> None:
    store = MemoryStore()
    begun(store, RunSpec.model_validate(SYNTHETIC))
    assert list(store.list("runs/r/data")) == []


def test_a_start_does_not_read_many_tokens_for_people(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "FEW_BYTES", 100)
    sources = read_sources(spec, find_data(spec))
    assert [one.documents for one in sources] == [None, None]
    assert list(what_is_unread(sources))[1] == (
        "Documents of code: not read when the run began: --documents reads all 360 bytes for them. "
        "See longhaul data SPEC."
    )


def test_a_start_does_not_read_many_documents_for_people(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "FEW_DOCUMENTS", 3)
    web, code = read_sources(spec, find_data(spec))
    assert web.documents and web.documents.num_documents == 3
    assert (code.documents, code.unread) == (None, "--documents reads more than 3 of them")


FACTS = DocumentFacts(
    num_tokens=1000,
    num_documents=40,
    longest=99,
    length_bounds=[0, 1],
    length_counts=[40],
    num_compared=40,
    num_copies=2,
    num_padding_tokens=0,
    num_cut=30,
)
SOURCE = ReadSource(
    name=None,
    share=None,
    num_tokens=1000,
    num_samples=60,
    tokenizer="bytes",
    digest="0123456789abcdef",
    documents=FACTS,
    unread=None,
)


def recorded(data: bytes) -> MemoryStore:
    store = MemoryStore()
    leave(store, attempt(run="r", term=1), "steps", [step_row(1)])
    store.put(name_of("r"), data)
    return store


def test_a_report_tells_what_data_a_run_read() -> None:
    (run,), skipped = long_runs(recorded(encode([SOURCE])))
    assert (run.data, skipped) == ((SOURCE,), ())
    assert dict(zip(HEADS, cells(SOURCE), strict=True)) == {
        "source": "all",
        "share": "100\u202f%",
        "tokens": "1,000",
        "samples": "60",
        "documents": "40",
        "longest": "99",
        "copies": "5.0\u202f%",
        "cut": "75.0\u202f%",
        "padding": "0.0\u202f%",
        "tokenizer": "bytes",
        "digest": "0123456789ab",
    }


def test_the_page_shows_what_each_source_holds_and_how_the_rest_is_learnt() -> None:
    html = trainings(example_findings()).text
    assert "Data that were trained on" in html
    for text in ("31,000,000", "1.4\u202f%", "30.0\u202f%", "75.0\u202f%", "tokenizer.json", "web000000000"):
        assert f">{text}</" in html
    assert "Documents of code: not read when the run began" in html


def in_source(key: str, value: object) -> Callable[[Any], None]:
    return lambda body: body["sources"][0].update({key: value})


def in_documents(key: str, value: object) -> Callable[[Any], None]:
    return lambda body: body["sources"][0]["documents"].update({key: value})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda body: body.update(format="longhaul data read 2"),
        lambda body: body.update(sources=7),
        lambda body: body.pop("sources"),
        in_source("num_tokens", -1),
        in_source("num_tokens", 2**63),
        in_source("num_samples", True),
        in_source("share", 2.0),
        in_source("share", 10**400),
        in_source("share", float("nan")),
        in_source("share", "1"),
        in_source("tokenizer", 7),
        in_source("documents", []),
        in_documents("num_cut", "1"),
        in_documents("length_counts", [1, 2]),
        in_documents("length_bounds", [0, None]),
    ],
)
def test_a_record_of_data_that_says_nonsense_is_skipped_by_name(wrong: Callable[[Any], None]) -> None:
    body = json.loads(encode([SOURCE]))
    wrong(body)
    (run,), (skipped,) = long_runs(recorded(json.dumps(body).encode()))
    assert (run.data, skipped.name) == ((), "runs/r/data.json")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b'{"format": NaN}'])
def test_what_is_no_record_of_data_is_skipped_by_name(text: bytes) -> None:
    (run,), (skipped,) = long_runs(recorded(text))
    assert (run.data, skipped.name) == ((), "runs/r/data.json")
