"""Ids and masks of chat data beside those of transformers, token by token."""

from pathlib import Path

import pytest

from jobs.packing.chat.masks import trained
from jobs.packing.chat.sandbox import Template
from jobs.packing.chat.spans import rendered
from jobs.packing.chat.template_file import read_template
from jobs.packing.tokenizing import read_recipe
from tests.unit.chat_templates import MODELS, Model, conversation, write_model


@pytest.mark.parametrize("is_marked", [False, True], ids=["plain", "marked"])
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_ids_and_masks_are_those_of_transformers(model: Model, is_marked: bool, tmp_path: Path) -> None:
    """Theirs come from the marked template, whichever ours is."""
    from transformers import PreTrainedTokenizerFast

    ours = write_model(tmp_path / "ours", model, is_marked=is_marked)
    write_model(tmp_path / "theirs", model, is_marked=True)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path / "theirs")
    template, tokenizer = (
        Template(read_template(str(ours), None)),
        read_recipe(str(ours), None, needs_end=False).open(),
    )
    for messages in _conversations(model):
        expected = theirs.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        found = rendered(template, messages, "here")
        ids, offsets = tokenizer.ids_with_offsets(found.text)
        assert list(ids) == expected["input_ids"]
        assert list(map(int, trained(found, offsets))) == expected["assistant_masks"]
        assert 0 < sum(expected["assistant_masks"]) < len(ids)


def _conversations(model: Model) -> list[list[dict[str, str]]]:
    whole = conversation(system=model.has_system)
    first = 3 if model.has_system else 2
    return [whole, whole[:first], whole[: first + 2], conversation(system=False)]
