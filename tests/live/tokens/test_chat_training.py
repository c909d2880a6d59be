"""Conversations are trained on: alone in their rows, on the assistant's words, also after a stop."""

import hashlib
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from checkpointing.stores.local import LocalStore
from jobs.packing.chat.rows import Rows, flagged
from jobs.training.data.conversations import UNTRAINED, num_labels, unpack
from jobs.training.models.decoder import Decoder
from jobs.training.task.job import Recipe
from jobs.training.task.presets import preset
from jobs.training.task.settings import Settings
from jobs.training.task.task import Tokens
from jobs.training.task.token_index import Chat, TokenIndex, TokenShard
from jobs.training.task.windows import rows_of
from tests.live.attempts import Wanted, attempt_each, digests_of, newest_manifest
from tests.live.ranks import run_ranks
from tests.live.trainings import recipe_for

SEQ_LEN = 32


def conversations(number: int) -> list[list[int]]:
    """Of different lengths; each token but a few at the beginning is trained on."""
    lengths = [5 + one * 7 % 23 for one in range(number)]
    return [
        flagged([(one * 31 + at * 7) % 500 for at in range(length)], [at > one % 4 for at in range(length)])
        for one, length in enumerate(lengths)
    ]


def rows_with(words: list[list[int]]) -> torch.Tensor:
    rows = Rows(SEQ_LEN)
    for one in words:
        rows.add(one)
    rows.close()
    return torch.tensor(list(rows.tokens)).view(-1, SEQ_LEN)


def losses(model: Decoder, rows: torch.Tensor) -> tuple[float, int]:
    """The sum over all labels, and how many there are."""
    ids, labels, begins = unpack(rows)
    return float(model(ids, labels, begins)) * labels.numel(), num_labels(rows)


@torch.no_grad()
def test_a_conversation_in_a_row_with_others_is_computed_as_if_it_were_alone() -> None:
    words = conversations(12)
    rows = rows_with(words)
    assert len(rows) < len(words) / 1.5
    for settings in (Settings(), Settings(cross_entropy="chunked")):
        for name in ("llama-tiny", "mistral-tiny"):
            torch.manual_seed(1)
            model = Decoder(
                replace(preset(name), sliding_window=6 if name == "mistral-tiny" else None), settings
            )
            alone = 0.0
            for one in words:
                ids, labels, _ = unpack(torch.tensor([one]))
                logits = model(ids)
                alone += float(F.cross_entropy(logits[0], labels[0], ignore_index=UNTRAINED, reduction="sum"))
            together, num_trained = losses(model, rows)
            assert num_trained == sum(token >= 2**31 for one in words for token in one)
            assert abs(together - alone) < 1e-4 * alone


def test_gradients_of_both_losses_are_equal_where_some_tokens_have_no_label() -> None:
    rows = rows_with(conversations(12))
    gradients = []
    for how in ("whole", "chunked"):
        torch.manual_seed(1)
        model = Decoder(preset("llama-tiny"), Settings(cross_entropy=how))
        model(*unpack(rows)).backward()
        gradients.append(
            torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        )
    assert torch.allclose(*gradients, atol=1e-7)


def write_tokens(place: Path, words: list[list[int]], num_held_out: int) -> Tokens:
    data = rows_with(words).to(torch.uint32).numpy().tobytes()
    LocalStore(place).put("0.bin", data)
    digest, num_tokens = hashlib.sha256(data).hexdigest(), len(data) // 4
    chat = Chat(seq_len=SEQ_LEN, num_trained=1, template="t")
    shard = TokenShard(name="0.bin", num_tokens=num_tokens, sha256=digest)
    windows = rows_of(num_tokens, seq_len=SEQ_LEN, num_held_out=num_held_out)
    return Tokens(
        url=str(place), index=TokenIndex(dtype="uint32", shards=(shard,), chat=chat), windows=windows
    )


def test_a_run_that_stopped_is_the_run_that_did_not_at_any_cut_of_its_step(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens", conversations(60), num_held_out=8)
    recipe = recipe_for("ddp", world_size=2, micro_batch=1, grad_accum=2)

    def wanted(name: str, num_steps: int, how: Recipe = recipe) -> Wanted:
        return Wanted(
            name=name, recipe=how, num_steps=num_steps, store=tmp_path / "store", tokens=tokens, eval_every=2
        )

    other = replace(recipe, micro_batch=2, grad_accum=1)
    stories = run_ranks(
        attempt_each,
        [wanted("alone", 4), wanted("stopped", 3), wanted("stopped", 4), wanted("other-cut", 4, other)],
        num_ranks=2,
        tmp_path=tmp_path,
    )[0]
    alone, _, gone_on, cut = stories
    assert gone_on.start.step == 3
    assert gone_on.end.loss == alone.end.loss
    store = tmp_path / "store"
    assert digests_of(newest_manifest(store, "stopped")) == digests_of(newest_manifest(store, "alone"))
    assert abs(cut.end.loss - alone.end.loss) < 1e-4
