"""What is said of settings, whoever wrote them."""

from dataclasses import fields
from types import SimpleNamespace
from typing import get_args

import pytest

from jobs.training.task.job import Recipe
from jobs.training.task.settings import (
    Attention,
    Checkpointing,
    Compile,
    CrossEntropy,
    Fp8,
    Offload,
    Settings,
)
from reporting.results.rows import Row
from reporting.results.settings import NAMES, NUMBERS, SETTINGS, SWITCHES, settings_of, settings_text

WORDS = {
    "activation_checkpointing": Checkpointing,
    "cross_entropy": CrossEntropy,
    "compile": Compile,
    "attention": Attention,
    "fp8": Fp8,
    "offload": Offload,
}


def row(**values: str | bool | int | None) -> Row:
    return Row(source="made up", **values)  # type: ignore[arg-type]  # settings all


def test_every_word_of_a_recipe_has_its_text_and_the_usual_one_comes_first() -> None:
    assert {name: tuple(texts) for name, texts in SETTINGS.items()} == {
        name: get_args(words) for name, words in WORDS.items()
    }
    for name, texts in SETTINGS.items():
        usual, *others = texts
        assert Recipe.__dataclass_fields__[name].default == usual
        assert (texts[usual], all(texts[other] for other in others)) == ("", True)


def test_every_setting_has_words_or_the_text_of_its_number() -> None:
    assert set(NAMES) == {field.name for field in fields(Settings)}
    assert all(Recipe.__dataclass_fields__[name].default is None for name in NUMBERS)
    assert settings_text(row(shard_within=8)) == "sharded within 8"
    assert all(Recipe.__dataclass_fields__[name].default is False for name in SWITCHES)
    assert settings_text(row(deterministic=True)) == "deterministic"
    assert settings_text(row(deterministic=False)) == ""


def test_of_the_usual_and_of_the_unknown_nothing_is_said() -> None:
    assert settings_text(row()) == settings_text(row(compile="none", attention="auto")) == ""


def test_what_is_not_usual_is_said_in_the_order_of_the_settings() -> None:
    found = row(shard_within=4, offload="optimizer", cross_entropy="chunked", activation_checkpointing="full")
    words = "full checkpointing, chunked loss, offloaded optimizer, sharded within 4"
    assert settings_text(found) == words


@pytest.mark.parametrize("value", ["<b>$x$\n\x1b[31m|`", "a" * 10_000])
def test_a_word_of_somebody_else_is_short_and_harmless(value: str) -> None:
    text = settings_text(row(compile=value))
    assert text.startswith("compile ")
    assert len(text) <= 30
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.- ")


def test_settings_are_those_of_anything_that_has_them() -> None:
    usual = {
        **{name: next(iter(texts)) for name, texts in SETTINGS.items()},
        **dict.fromkeys((*NUMBERS, *SWITCHES)),
    }
    assert settings_of(SimpleNamespace(**usual)) == usual
