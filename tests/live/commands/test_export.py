"""An exported model is the model: other tools load it, and it computes to the last digit what ours does."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from checkpointing.errors import Corrupt, NothingToResume, Unfit
from checkpointing.format.digests import digests
from checkpointing.format.manifest import Cut, FilePart, file_name, manifest_of
from checkpointing.generations.repository import Repository, generation_name
from checkpointing.log.history import Generation, Quarantine
from checkpointing.saving.snapshot import Arena, Piece, layout
from checkpointing.stores.contract import Store
from checkpointing.stores.local import LocalStore
from jobs.checkpoints.export import export
from jobs.cli.__main__ import main
from jobs.training.data.synthetic import sample
from jobs.training.models.decoder import Decoder
from jobs.training.models.init import fill
from jobs.training.task.events import Evaluated
from jobs.training.task.presets import preset
from tests.live.attempts import NUM_SAMPLES, Wanted, attempt_each
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for
from tests.unit.printed import checked

transformers = pytest.importorskip("transformers", reason="a test extra: pip install longhaul[test]")

TINY = ("llama-tiny", "qwen-tiny", "mistral-tiny")
RANKS = 2


def decoder_of(model: str) -> Decoder:
    """Its weights are uneven, so that none can stand in for another."""
    decoder = Decoder(preset(model))
    for name, parameter in decoder.named_parameters():
        fill(name, parameter, seed=3, precision="fp32")
        _shake(parameter, len(name))
    return decoder


@torch.no_grad()
def _shake(parameter: torch.Tensor, seed: int) -> None:
    parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))


def saved(store: Store, decoder: Decoder, *, model: str | None = None) -> tuple[Repository, Generation]:
    """The decoder as a generation of two ranks, whose border lies anywhere in each tensor."""
    repository = Repository(store, "r")
    term = repository.take_over("a test")
    cut = Cut(
        generation=generation_name(7, term, "s1"),
        run="r",
        step=7,
        term=term,
        number=1,
        strategy="fsdp",
        world_size=RANKS,
        created_s=0.0,
        state={"model": model or decoder.config.name},
    )
    parts = [_put(repository, cut, rank, _pieces(decoder, rank)) for rank in range(RANKS)]
    return repository, repository.commit(manifest_of(cut, parts), term=term)


def _pieces(decoder: Decoder, rank: int) -> list[Piece]:
    pieces = []
    for name, parameter in decoder.named_parameters():
        values = parameter.detach().flatten()
        border = values.numel() // 3
        own = values[:border] if rank == 0 else values[border:]
        start = 0 if rank == 0 else border
        pieces += [
            Piece(name=f"{kind}/{name}", shape=tuple(parameter.shape), start=start, values=content)
            for kind, content in (("param", own), ("exp_avg", torch.full_like(own, 9.0)))
        ]
    return pieces


def _put(repository: Repository, cut: Cut, rank: int, pieces: list[Piece]) -> FilePart:
    arena, found = Arena(pieces, layout(pieces)), layout(pieces)
    arena.take(pieces)
    repository.put_file(cut.generation, file_name(rank), arena.data)
    return FilePart(
        rank=rank,
        file=file_name(rank),
        num_bytes=found.num_bytes,
        chunks=digests(arena.data),
        tensors=found.tensors,
        shards=found.shards,
    )


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dictionary
    return found


@pytest.mark.parametrize("model", TINY)
def test_transformers_loads_it_and_computes_the_same(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = decoder_of(model)
    saved(LocalStore(tmp_path / "store"), decoder)
    place = ["--store", str(tmp_path / "store"), "--run", "r"]
    assert main(["checkpoints", "export", *place, "--to", str(tmp_path / "out"), "--json"]) == 0
    assert checked("checkpoints_export", capsys.readouterr().out)["files"] == ["model.safetensors"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    ids = torch.randint(0, decoder.config.vocab_size, (2, 96), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(decoder(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_every_tensor_is_there_to_the_bit_and_nothing_else(tmp_path: Path) -> None:
    decoder = decoder_of("llama-tiny")
    export(*saved(LocalStore(tmp_path / "store"), decoder), tmp_path / "out")
    found, expected = tensors_in(tmp_path / "out"), dict(decoder.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_as_bf16_each_number_is_the_nearest(tmp_path: Path) -> None:
    decoder = decoder_of("qwen-tiny")
    done = export(*saved(LocalStore(tmp_path / "store"), decoder), tmp_path / "out", dtype="bf16")
    found, expected = tensors_in(tmp_path / "out"), dict(decoder.named_parameters())
    assert all(torch.equal(found[name], expected[name].bfloat16()) for name in expected)
    assert done.num_bytes == 2 * preset("qwen-tiny").num_parameters
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_a_large_model_comes_in_several_files_that_are_loaded_as_one(tmp_path: Path) -> None:
    decoder = decoder_of("llama-tiny")
    repository, generation = saved(LocalStore(tmp_path / "store"), decoder)
    done = export(repository, generation, tmp_path / "out", max_file_bytes=10**6)
    assert len(done.files) > 2
    sizes = [(tmp_path / "out" / name).stat().st_size for name in done.files]
    assert max(sizes) < 10**6 + 10**5  # The header comes on top.
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * preset("llama-tiny").num_parameters
    assert set(index["weight_map"].values()) == set(done.files)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    loaded = dict(theirs.named_parameters())
    assert all(torch.equal(loaded[name], value) for name, value in decoder.named_parameters())


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    chosen = saved(LocalStore(tmp_path / "store"), decoder_of("llama-tiny"))
    (tmp_path / "out").mkdir()
    export(*chosen, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(Exception, match="holds something already"):
        export(*chosen, tmp_path / "out", dtype="bf16")
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_of_a_damaged_generation_nothing_is_left_behind_and_nothing_else_goes(tmp_path: Path) -> None:
    repository, generation = saved(LocalStore(tmp_path / "store"), decoder_of("llama-tiny"))
    # As the folder is named that is written first.
    (tmp_path / ".out-01234567").mkdir()
    (tmp_path / ".out-01234567" / "file").write_text("theirs")
    path = tmp_path / "store" / "runs/r/gen" / generation.name / file_name(1)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 4] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Corrupt, match="not what was saved"):
        export(repository, generation, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"store", ".out-01234567"}
    assert (tmp_path / ".out-01234567" / "file").read_text() == "theirs"


def test_what_is_quarantined_or_of_no_known_model_is_refused(tmp_path: Path) -> None:
    repository, generation = saved(LocalStore(tmp_path / "a"), decoder_of("llama-tiny"))
    [quarantined] = repository.append(Quarantine(name=generation.name, reason="poison")).generations
    with pytest.raises(NothingToResume, match="poison"):
        export(repository, quarantined, tmp_path / "out")
    for number, model in enumerate(("qwen-tiny", "gpt-9")):
        with pytest.raises(Unfit, match=model):
            chosen = saved(LocalStore(tmp_path / f"b{number}"), decoder_of("llama-tiny"), model=model)
            export(*chosen, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_trained_model_has_the_loss_that_its_run_told(tmp_path: Path) -> None:
    recipe = recipe_for("zero3", world_size=2, model="qwen-tiny")
    wanted = Wanted(name="r", recipe=recipe, num_steps=4, store=tmp_path / "store", eval_every=4)
    [story] = run_ranks(attempt_each, [wanted], num_ranks=2, tmp_path=tmp_path)[0]
    [evaluated] = [one for one in story.told if isinstance(one, Evaluated)]
    place = ["--store", str(tmp_path / "store"), "--run", "r"]
    assert main(["checkpoints", "export", *place, "--to", str(tmp_path / "out")]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    rows = torch.stack([sample(recipe, NUM_SAMPLES + index) for index in range(8)])
    ids, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    with torch.no_grad():
        loss = theirs(ids, labels=labels, shift_labels=labels).loss.item()
    assert loss == pytest.approx(evaluated.val_loss, abs=1e-5)
