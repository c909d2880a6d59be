"""What a run trains on is found, or refused in one line, before anything is started."""

import hashlib
import os
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing.stores.local import LocalStore
from jobs.commandline.usage_error import SpecError
from jobs.runs.data_check.find import find_data, find_tokens, num_samples
from jobs.runs.tasks import described_run
from jobs.spec_schema.compatibility import refusals
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Mixture, ShardCacheLimits
from jobs.training.task.token_index import (
    INDEX,
    Chat,
    Split,
    TokenIndex,
    TokenShard,
    Vocabulary,
    from_json,
    to_json,
)

BYTES = Vocabulary(tokenizer="bytes", digest="5" * 64, size=257)


def write_shards(place: Path, *shards: Sequence[int], vocabulary: Vocabulary | None = BYTES) -> None:
    store = LocalStore(place)
    entries = []
    for number, ids in enumerate(shards):
        data = struct.pack(f"<{len(ids)}H", *ids)
        store.put(f"{number:05}.bin", data)
        entries.append(
            TokenShard(
                name=f"{number:05}.bin",
                num_tokens=len(ids),
                sha256=hashlib.sha256(data).hexdigest(),
                largest_id=max(ids),
            )
        )
    store.put(INDEX, to_json(TokenIndex(dtype="uint16", shards=tuple(entries), vocabulary=vocabulary)))


def test_what_ends_a_document_is_what_the_index_says_or_the_spec(place: Path) -> None:
    own = "data.attention=per_document"
    write_shards(place, range(50), vocabulary=None)
    with pytest.raises(SpecError, match=r"^data\.attention: nothing says which id ends a document of "):
        find_tokens(spec_for(place, own))
    told = [find_tokens(spec_for(place, *settings)) for settings in ([], [own, "data.end_id=0"])]
    assert [one and one.end_id for one in told] == [None, 0]
    write_shards(place, range(50), vocabulary=replace(BYTES, end_id=256))
    wanted = ([own], [own, "data.end_id=7"], [])
    told = [find_tokens(spec_for(place, *settings)) for settings in wanted]
    assert [one and one.end_id for one in told] == [256, 7, None]
    with pytest.raises(
        SpecError, match=r"^data\.end_id: is 1,000,000; expected an id of llama-tiny, which ends at "
    ):
        find_tokens(spec_for(place, own, "data.end_id=1000000"))


def spec_for(place: Path, *settings: str) -> RunSpec:
    file = place.parent / "spec.yaml"
    file.write_text(
        "name: r\nmodel: llama-tiny\nsteps: 4\nseq_len: 4\nmicro_batch: 2\neval: {samples: 2}\n"
        f"data: {{kind: tokens, path: {place}}}\n"
    )
    return RunSpec.load(file, settings)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def test_all_but_the_held_out_tokens_make_an_epoch(place: Path) -> None:
    write_shards(place, range(30), range(20))
    spec = spec_for(place)
    found = find_tokens(spec)
    assert found is not None
    assert (found.url, found.index.num_tokens) == (str(place), 50)
    # 9 tokens are two held-out samples of 4; 41 are ten samples, the first token of which nobody predicts.
    assert num_samples(spec, found) == 10


def test_synthetic_samples_make_an_epoch_as_they_are_named(tmp_path: Path) -> None:
    spec = spec_for(tmp_path / "none", "data={samples: 77}")
    assert find_tokens(spec) is None
    assert num_samples(spec, None) == 77


def refusal(spec: RunSpec) -> str:
    with pytest.raises(SpecError) as refused:
        find_tokens(spec)
    (problem,) = refused.value.problems
    return problem


def test_an_address_of_no_bucket_is_named_with_its_key_unless_it_holds_a_password(place: Path) -> None:
    problem = refusal(spec_for(place, "data.path=s3://b/tokens"))
    assert problem.startswith("data.path: 's3://b/tokens': is no place for data (store: expected s3://bucket")
    assert "secret" not in refusal(spec_for(place, "data.path=s3://me:secret@bucket/tokens"))


def test_a_folder_without_an_index_is_no_data(place: Path) -> None:
    place.mkdir()
    problem = refusal(spec_for(place))
    assert (
        "index.json is not there, nor Parquet files of ids; expected a folder that `longhaul pack" in problem
    )


def test_shards_without_tokens_are_no_data(place: Path) -> None:
    write_shards(place)
    assert "index.json: names no tokens" in refusal(spec_for(place))


def test_too_little_for_one_global_batch_is_refused_with_both_numbers(place: Path) -> None:
    write_shards(place, range(50))
    assert find_tokens(spec_for(place, "grad_accum=5")) is not None
    problem = refusal(spec_for(place, "grad_accum=6"))
    assert "has 50 tokens, 10 samples of seq_len 4 beside 2 held out" in problem
    assert "one step takes 12 (world_size x micro_batch x grad_accum)" in problem


def test_synthetic_samples_may_be_too_few_as_well(tmp_path: Path) -> None:
    problem = refusal(spec_for(tmp_path / "none", "data={samples: 7}", "grad_accum=4"))
    assert problem.startswith("data.samples: 7 samples, but one step takes 8")


def test_data_smaller_than_what_is_held_out_is_refused(place: Path) -> None:
    write_shards(place, range(5))
    assert "5 tokens, 0 samples" in refusal(spec_for(place))


@pytest.mark.parametrize(
    ("num_bytes", "says"), [(None, "is not there, but in the index"), (39, "shorter"), (41, "longer")]
)
def test_a_shard_that_is_not_as_its_index_says_is_named(
    num_bytes: int | None, says: str, place: Path
) -> None:
    write_shards(place, range(30), range(20))
    shard = place / "00001.bin"
    if num_bytes is None:
        shard.unlink()
    else:
        shard.write_bytes(bytes(num_bytes))
    problem = refusal(spec_for(place))
    assert str(shard) in problem
    assert says in problem


def test_of_many_missing_shards_one_is_named_and_the_others_are_counted(place: Path) -> None:
    write_shards(place, range(30), range(20), range(9))
    for shard in place.glob("*.bin"):
        shard.unlink()
    assert "00000.bin is not there, but in the index (and 2 more shards)" in refusal(spec_for(place))


def test_each_of_thousands_of_shards_has_its_own_version(place: Path) -> None:
    """They are looked at several at a time."""
    shards = [TokenShard(name=f"{number}.bin", num_tokens=30) for number in range(2000)]
    store = LocalStore(place)
    store.put(INDEX, to_json(TokenIndex(dtype="uint16", shards=tuple(shards))))
    for shard in shards:
        (place / shard.name).write_bytes(bytes(60))
    tokens = find_tokens(spec_for(place))
    assert tokens is not None
    assert list(tokens.versions) == [store.look(shard.name)[1] for shard in shards]
    assert len(set(tokens.versions)) == len(shards)


def test_a_vocabulary_larger_than_the_models_is_refused(place: Path) -> None:
    write_shards(place, range(50), vocabulary=Vocabulary(tokenizer="big.json", digest="6" * 64, size=513))
    problem = refusal(spec_for(place))
    assert "was packed with big.json, a vocabulary of 513, but llama-tiny has one of 512" in problem


def test_ids_beyond_the_vocabulary_are_found_where_nobody_knows_the_tokenizer(place: Path) -> None:
    write_shards(place, range(50), [512], vocabulary=None)
    problem = refusal(spec_for(place))
    assert "00001.bin: has the token id 512" in problem
    assert "of llama-tiny ends at 511" in problem


@pytest.mark.parametrize("named", ["bytes", "5" * 64, "5" * 12])
def test_the_tokenizer_that_is_meant_is_accepted_by_name_and_digest(named: str, place: Path) -> None:
    write_shards(place, range(50))
    assert find_tokens(spec_for(place, f"data.tokenizer={named!r}")) is not None


def test_a_tokenizers_file_is_known_by_its_bytes(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(b"{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    write_shards(place, range(50), vocabulary=Vocabulary(tokenizer="other name", digest=digest, size=9))
    spec = spec_for(place, f"data.tokenizer={file}")
    assert find_tokens(spec) is not None
    file.write_bytes(b"{ }")
    assert "was packed with other name" in refusal(spec)


@pytest.mark.parametrize("named", ["gpt2", "5" * 11, "6" * 64])
def test_another_tokenizer_than_the_one_that_is_meant_is_refused(named: str, place: Path) -> None:
    write_shards(place, range(50))
    problem = refusal(spec_for(place, f"data.tokenizer={named!r}"))
    assert f"was packed with bytes (555555555555), not with {named}" in problem


def test_tokens_of_an_unknown_tokenizer_are_none_that_was_meant(place: Path) -> None:
    write_shards(place, range(50), vocabulary=None)
    assert "with an unknown tokenizer, not with bytes" in refusal(spec_for(place, "data.tokenizer=bytes"))


def write_parquet(place: Path, **columns: object) -> None:
    place.mkdir(exist_ok=True)
    for number in range(2):
        pyarrow.parquet.write_table(pyarrow.table(columns), place / f"{number}.parquet")


def test_parquet_files_of_ids_need_no_index_and_a_place_to_be_decoded(place: Path) -> None:
    write_parquet(place, input_ids=[list(range(10)), [], list(range(15))])
    found = find_tokens(spec_for(place, "data.local={dir: /nvme/tokens, gib: 2}"))
    assert found is not None
    assert [(shard.name, shard.num_tokens, shard.largest_id) for shard in found.index.shards] == [
        ("0.parquet", 25, 14),
        ("1.parquet", 25, 14),
    ]
    assert found.cache == ShardCacheLimits(folder="/nvme/tokens", limit_bytes=2 * 2**30)
    somewhere = find_tokens(spec_for(place))
    assert somewhere is not None
    assert somewhere.cache is not None


def test_parquet_is_not_decoded_to_where_saves_are_kept(place: Path) -> None:
    write_parquet(place, ids=[*range(30)])
    problem = refusal(spec_for(place, f"checkpoint.local.dir={gettempdir()}"))
    assert problem.startswith(f"data.local.dir: {gettempdir()!r} and checkpoint.local.dir: ")


@pytest.mark.parametrize("strange", ["part 1.parquet", "A.PARQUET", "my ids/0.parquet", "0(1).parquet"])
def test_parquet_under_a_name_that_can_not_be_read_is_refused_and_not_left_out(
    strange: str, place: Path
) -> None:
    write_parquet(place, ids=[*range(30)])
    (place / strange).parent.mkdir(exist_ok=True)
    (place / "0.parquet").rename(place / strange)
    assert refusal(spec_for(place)).startswith(f"data: {place}/{strange!r}: expected letters, digits and ")


def test_parquet_that_a_tool_hides_is_no_data(place: Path) -> None:
    write_parquet(place, ids=[*range(30)])
    (place / ".trash").mkdir()
    (place / "1.parquet").rename(place / ".trash" / "1.parquet")
    (place / "._0.parquet").write_bytes(b"a Mac's")
    found = find_tokens(spec_for(place))
    assert found is not None
    assert [shard.name for shard in found.index.shards] == ["0.parquet"]


def test_an_index_that_names_parquet_is_refused(place: Path) -> None:
    write_parquet(place, ids=[*range(30)])
    shard = TokenShard(name="0.parquet", num_tokens=30)
    LocalStore(place).put(INDEX, to_json(TokenIndex(dtype="uint32", shards=(shard,))))
    assert f"{place}/index.json: names 0.parquet, expected .bin files" in refusal(spec_for(place))


def test_the_folder_of_parquet_may_have_any_name(tmp_path: Path) -> None:
    place = tmp_path / "my ids (1)"
    write_parquet(place, ids=[*range(30)])
    found = find_tokens(spec_for(place))
    assert found is not None
    assert found.index.num_tokens == 60


def test_parquet_ids_beyond_the_vocabulary_are_found_in_the_footer(place: Path) -> None:
    write_parquet(place, ids=[*range(30), 512])
    assert "0.parquet: has the token id 512" in refusal(spec_for(place))


def test_parquet_of_something_else_is_refused_with_its_columns(place: Path) -> None:
    write_parquet(place, text=["a"], label=[1])
    problem = refusal(spec_for(place))
    assert (
        "0.parquet: has no column of ids (['text', 'label']); expected one of input_ids, ids, tokens"
        in problem
    )
    write_parquet(place, ids=["a"])
    assert "0.parquet: its column 'ids' holds string, expected whole numbers" in refusal(spec_for(place))


def test_shards_are_read_where_they_lie_unless_a_nearer_place_is_named(place: Path) -> None:
    write_shards(place, range(50))
    found, brought = (find_tokens(spec_for(place, *more)) for more in ((), ("data.local.dir=/nvme",)))
    assert found is not None
    assert brought is not None
    assert found.cache is None
    assert brought.cache == ShardCacheLimits(folder="/nvme", limit_bytes=50 * 2**30)


def test_the_tokenizer_beside_the_weights_is_expected_unless_another_is_named(
    place: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    file = weights / "tokenizer.json"
    write_shards(place, range(50))
    spec = spec_for(place, f"weights={weights}")
    assert find_tokens(spec) is not None
    file.write_bytes(b"{}")
    assert f"was packed with bytes (555555555555), but {weights} has another tokenizer.json" in refusal(spec)
    assert find_tokens(spec_for(place, f"weights={weights}", "data.tokenizer=bytes")) is not None
    digest = hashlib.sha256(b"{}").hexdigest()
    write_shards(place, range(50), vocabulary=Vocabulary(tokenizer="t", digest=digest, size=9))
    assert find_tokens(spec) is not None


def test_the_tokenizer_beside_a_file_of_weights_is_expected_too(place: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"{}")
    write_shards(place, range(50))
    weights = tmp_path / "model.safetensors"
    assert f"but {weights} has another tokenizer.json" in refusal(spec_for(place, f"weights={weights}"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{kind: tokens}", "data: tokens need a path"),
        ("{kind: tokens, path: t, samples: 9}", "data: samples: of tokens all are used"),
        ("{kind: synthetic, path: t}", "data: synthetic data has no path"),
    ],
)
def test_what_does_not_go_together_is_said(data: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        spec_for(tmp_path / "none", f"data={data}")


def write_conversations(place: Path, num_rows: int, seq_len: int) -> None:
    data = bytes(4 * num_rows * seq_len)
    LocalStore(place).put("0.bin", data)
    shard = TokenShard(name="0.bin", num_tokens=num_rows * seq_len)
    chat = Chat(seq_len=seq_len, num_trained=1, template="t")
    index = TokenIndex(dtype="uint32", shards=(shard,), chat=chat)
    LocalStore(place).put(INDEX, to_json(index))


def test_conversations_are_trained_on_by_the_row(place: Path) -> None:
    seq_len = spec_for(place).seq_len
    write_conversations(place, 9, seq_len)
    found = find_tokens(spec_for(place, "eval.samples=2"))
    assert found is not None
    assert (found.windows.num_samples, found.windows.window_tokens) == (7, seq_len)
    assert [found.windows.start_of(number) for number in (1, 8)] == [seq_len, 8 * seq_len]


def test_conversations_in_rows_of_another_length_are_refused(place: Path) -> None:
    seq_len = spec_for(place).seq_len
    write_conversations(place, 9, seq_len + 1)
    problem = refusal(spec_for(place))
    assert f"holds conversations in rows of {seq_len + 1} tokens, but seq_len is {seq_len}" in problem
    assert f"set seq_len to {seq_len + 1}, or pack them with --seq-len {seq_len}" in problem


def test_an_index_without_an_end_is_not_read(place: Path) -> None:
    write_shards(place, range(30))
    os.truncate(place / INDEX, 1 << 40)  # no memory holds it
    with pytest.raises(SpecError, match=r"index.json: has 1,099,511,627,776 bytes, at most"):
        find_tokens(spec_for(place))


def source(place: Path, weight: float = 1.0, name: str | None = None) -> str:
    return f"{{name: {name or place.name}, path: {place}, weight: {weight}}}"


def mixed_spec(place: Path, *sources: str, setting: str = "eval.samples=3") -> RunSpec:
    file = place.parent / "mixed.yaml"
    named = sources or (source(place / "web", 0.75), source(place / "code", 0.25))
    file.write_text(
        "name: r\nmodel: llama-tiny\nsteps: 4\nseq_len: 4\nmicro_batch: 2\neval: {samples: 3}\n"
        f"data: {{kind: tokens, sources: [{', '.join(named)}]}}\n"
    )
    return RunSpec.load(file, [setting])


def test_each_source_of_a_mixture_holds_out_as_many_samples_whatever_its_weight(place: Path) -> None:
    write_shards(place / "web", range(90))
    write_shards(place / "code", range(40))
    found = find_data(mixed_spec(place))
    assert isinstance(found, Mixture)
    assert [(one.name, one.weight, one.tokens.windows.num_samples) for one in found.sources] == [
        ("web", 3, (90 - 2 * 4 - 2) // 4),
        ("code", 1, (40 - 2 * 4 - 2) // 4),
    ]
    assert num_samples(mixed_spec(place), found) == found.num_samples == 27


@pytest.mark.parametrize(
    ("code", "vocabulary", "says"),
    [
        ([], BYTES, "names no tokens"),
        (range(9), BYTES, "code: has no sample beside those held out"),
        (range(40), replace(BYTES, digest="6" * 64), "code: was packed with another tokenizer than web"),
        (range(40), replace(BYTES, end_id=3), "code: was packed with another tokenizer than web"),
        (range(40), None, "code: was packed with another tokenizer than web"),
    ],
)
def test_sources_that_do_not_fit_each_other_are_refused(
    code: Sequence[int], vocabulary: Vocabulary | None, says: str, place: Path
) -> None:
    more = "data.attention=per_document" if vocabulary and vocabulary.end_id else "data.attention=causal"
    write_shards(place / "web", range(90), vocabulary=replace(BYTES, end_id=256))
    if code:
        write_shards(place / "code", code, vocabulary=vocabulary)
    else:
        LocalStore(place / "code").put(INDEX, to_json(TokenIndex(dtype="uint16", shards=())))
    with pytest.raises(SpecError, match=says):
        find_data(mixed_spec(place, setting=more))


@pytest.mark.parametrize(
    ("begin_ids", "says"),
    [
        ([(7,), (), (7,)], "second: has nothing before each document, but first has the id 7; pack"),
        ([None, (), (7, 8)], "third: has the ids 7, 8 before each document, but second has nothing; pack"),
        (
            [(), None, (1, 2, 3, 4, 5)],
            "third: has the ids 1, 2, 3, 4, ... before each document, but first has nothing",
        ),
        ([(7,), (7,), (7,)], None),
        # Indexes of older versions do not say.
        ([None, (7,), (7,)], None),
        ([None, None, ()], None),
    ],
)
def test_sources_before_whose_documents_stand_other_ids_are_refused(
    begin_ids: list[tuple[int, ...] | None], says: str | None, place: Path
) -> None:
    names = ("first", "second", "third")
    for name, ids in zip(names, begin_ids, strict=True):
        write_shards(place / name, range(90), vocabulary=replace(BYTES, begin_ids=ids))
    spec = mixed_spec(place, *(source(place / name) for name in names))
    with pytest.raises(SpecError, match=re.escape(says)) if says else nullcontext() as refused:
        assert find_data(spec)
    if refused:
        assert len(refused.value.problems) == 1


def test_sources_share_the_cache_and_parquet_which_has_to_fit_comes_first(place: Path) -> None:
    write_shards(place / "web", range(90), vocabulary=None)
    (place / "code").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table({"ids": list(range(40))}), place / "code" / "a.parquet")

    def caches(setting: str) -> list[ShardCacheLimits | None]:
        found = find_data(mixed_spec(place, setting=setting))
        assert isinstance(found, Mixture)
        return [one.tokens.cache for one in found.sources]

    # Ids of Parquet take four bytes each, and those of the other source two.
    limits = ShardCacheLimits(folder="/nvme", limit_bytes=300, share_bytes=140)
    wanted = [limits, replace(limits, share_bytes=160)]
    assert caches(f"data.local={{dir: /nvme, gib: {300 / 2**30}}}") == wanted
    assert caches(f"data.local={{dir: /nvme, gib: {160 / 2**30}}}") == [
        replace(limits, limit_bytes=160, share_bytes=0),
        replace(limits, limit_bytes=160, share_bytes=160),
    ]
    with pytest.raises(SpecError, match=r"data\.sources: code: its Parquet files take 0\.00 GiB"):
        caches(f"data.local={{dir: /nvme, gib: {159 / 2**30}}}")
    default = ShardCacheLimits(folder=gettempdir(), limit_bytes=50 * 2**30, share_bytes=160)
    assert caches("eval.samples=3") == [None, default]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("data.path=elsewhere", "path and sources exclude each other"),
        ("data.kind=synthetic", "synthetic data has no path"),
        ("data.sources=[]", "tokens need a path"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(setting: str, says: str, place: Path) -> None:
    with pytest.raises(SpecError, match=says):
        mixed_spec(place, setting=setting)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (source(Path("web"), 2), "web is there twice"),
        (
            source(Path("code"), 1.0000001),
            "1, 1.0000001 in whole numbers are together more than 100,000; round",
        ),
        (source(Path("code"), 0), "more than 0"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(second: str, says: str, place: Path) -> None:
    with pytest.raises(SpecError, match=says):
        mixed_spec(place, source(Path("web")), second)


def test_a_run_keeps_the_order_of_its_samples_also_one_that_began_before_there_were_several(
    place: Path,
) -> None:
    write_shards(place / "web", range(90))
    usual = RunSpec.model_validate({"name": "any", "model": "llama-tiny", "steps": 1}).model_dump(mode="json")

    def described(shuffle: str) -> dict[str, Any]:
        spec = mixed_spec(place, source(place / "web"), setting=f"data.shuffle={shuffle}")
        return dict(described_run(spec, find_data(spec)))

    began = described("blocks")
    [line, _] = refusals(began, described("none"), usual, place="s/runs/r")
    assert line.startswith("data.shuffle: the run r has blocks, this spec none; put it back")
    del began["data"]["shuffle"]
    assert refusals(began, described("global"), usual, place="s/runs/r") == []
    assert len(refusals(began, described("blocks"), usual, place="s/runs/r")) == 2


def test_a_run_keeps_its_sources_and_their_bytes_but_not_their_places_and_weights(place: Path) -> None:
    web, code, moved = place / "web", place / "code", place / "moved"
    write_shards(web, range(90))
    write_shards(code, range(40))

    def described(*sources: str) -> Mapping[str, Any]:
        spec = mixed_spec(place, *sources)
        return described_run(spec, find_data(spec))

    def refused(*sources: str) -> list[str]:
        lines = refusals(began, described(*sources), {}, place="s/runs/r")
        return [line.partition(":")[0] for line in lines[:-1]]

    began = described(source(web, 3), source(code, 1))
    code.rename(moved)
    assert refused(source(web, 0.75), source(moved, 0.25, "code")) == []
    assert refused(source(web, 3), source(moved, 2, "code")) == []
    assert refused(source(moved, 1, "code"), source(web, 3)) == ["data.digest", "data.mixture"]
    assert refused(source(web, 3), source(moved, 1)) == ["data.digest", "data.mixture"]
    write_shards(code, [*range(39), 3])
    assert refused(source(web, 3), source(code, 1)) == ["data.digest"]


# What is evaluated on.

SPLIT = Split.of(Fraction(1, 200), is_held_out=True)


def write_side(place: Path, ids: Sequence[int], split: Split | None, vocabulary: Vocabulary = BYTES) -> None:
    write_shards(place, ids, vocabulary=vocabulary)
    store = LocalStore(place)
    index = replace(from_json(store.get(INDEX), "index"), split=split)
    store.put(INDEX, to_json(index))


def test_with_held_out_documents_all_tokens_of_the_training_are_trained_on(place: Path) -> None:
    write_side(place, range(41), replace(SPLIT, is_held_out=False))
    write_side(place / "held-out", range(100, 109), SPLIT)
    found = find_data(spec_for(place, f"eval.path={place}/held-out"))
    assert found is not None and found.held_out is not None
    assert found.held_out.url == f"{place}/held-out"
    # The first token of all is predicted by none.
    assert num_samples(spec_for(place), found) == 10
    assert found.held_out.windows.num_samples == 2
    own = find_data(spec_for(place))
    assert own is not None and own.held_out is None
    assert num_samples(spec_for(place), own) == 7


def test_what_is_wrong_with_what_is_evaluated_on_is_told_of_its_key(place: Path) -> None:
    write_side(place, range(41), None)
    with pytest.raises(SpecError, match=r"^eval\.path: .*nowhere/index\.json is not there"):
        find_data(spec_for(place, f"eval.path={place}/nowhere"))


@pytest.mark.parametrize(
    ("split", "ids", "more", "says"),
    [
        (SPLIT, range(8), "", "has 1 samples of seq_len 4, but eval.samples is 2; expected at most 1"),
        (replace(SPLIT, is_held_out=False), range(9), "", "is what a packing left for training"),
        (replace(SPLIT, denominator=199), range(9), "", "holds a larger share of documents than"),
        (None, range(41), "", "is trained on; expected other documents"),
        (SPLIT, range(9), "other", "was packed with another tokenizer than"),
    ],
)
def test_what_can_not_be_evaluated_on_is_refused(
    split: Split | None, ids: range, more: str, says: str, place: Path
) -> None:
    write_side(place, range(41), replace(SPLIT, is_held_out=False))
    write_side(place / "held-out", ids, split, replace(BYTES, digest="6" * 64) if more else BYTES)
    with pytest.raises(SpecError, match=rf"^eval\.path: {place}/held-out {says}"):
        find_data(spec_for(place, f"eval.path={place}/held-out"))
    with pytest.raises(SpecError, match=r"eval\.path: is for tokens; leave it out"):
        spec_for(place, "data={samples: 4}", "eval.path=held-out")


@pytest.mark.parametrize(("begin_ids", "is_taken"), [(None, True), ((7,), True), ((), False)])
def test_documents_are_evaluated_on_that_begin_as_those_that_are_trained_on(
    begin_ids: tuple[int, ...] | None, is_taken: bool, place: Path
) -> None:
    write_side(place, range(41), None, replace(BYTES, begin_ids=(7,)))
    write_side(place / "held-out", range(100, 109), None, replace(BYTES, begin_ids=begin_ids))
    says = r"eval\.path: .*held-out has nothing before each document, but .* has the id 7; pack one of them"
    with nullcontext() if is_taken else pytest.raises(SpecError, match=says):
        assert find_data(spec_for(place, f"eval.path={place}/held-out"))


@pytest.mark.parametrize("share", [Fraction(1, 300), Fraction(1, 100)])
def test_what_was_held_out_is_not_trained_on_while_another_held_out_set_is_evaluated_on(
    share: Fraction, place: Path
) -> None:
    write_side(place, range(41), Split.of(share, is_held_out=True))
    write_side(place / "held-out", range(100, 109), SPLIT)
    with pytest.raises(SpecError, match=f"and {place}, which is trained on, were both held out"):
        find_data(spec_for(place, f"eval.path={place}/held-out"))


def test_tokens_of_which_one_shard_is_trained_on_are_not_evaluated_on(place: Path) -> None:
    write_shards(place, range(30), range(50, 70))
    write_shards(place / "other", range(100, 120), range(50, 70))
    with pytest.raises(SpecError, match="is trained on; expected other documents"):
        find_data(spec_for(place, f"eval.path={place}/other"))


def test_a_run_keeps_what_it_is_evaluated_on_wherever_that_lies(place: Path) -> None:
    write_side(place, range(60), None)
    for name, ids in (("a", range(9)), ("b", range(9)), ("c", range(1, 10))):
        write_side(place.parent / name, ids, None)

    def described(*settings: str) -> Mapping[str, Any]:
        spec = spec_for(place, *settings)
        return described_run(spec, find_data(spec))

    first, moved, other = (described(f"eval.path={place.parent}/{name}") for name in "abc")
    usual = described_run(spec_for(place, "data={samples: 40}"), None)
    assert refusals(first, moved, usual, place="s/runs/r") == []
    for wanted in (other, described()):
        lines = refusals(first, wanted, usual, place="s/runs/r")
        assert [line.partition(":")[0] for line in lines[:-1]] == ["eval.digest"]
