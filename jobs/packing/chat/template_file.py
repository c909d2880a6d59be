"""Finds the chat template: a file, the one beside the tokenizer, or ``chatml``, which is built in."""

import json
from pathlib import Path
from typing import Any

from cluster.yaml_file import read_named
from jobs.packing.chat.recipe import ChatTemplate
from jobs.packing.pieces import InputError

# Templates with tools and all languages have some 20 KB.
MOST_TEMPLATE_BYTES = 256 * 2**10
_MOST_CONFIG_BYTES = 64 * 2**20
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def read_template(tokenizer: str, given: str | None) -> ChatTemplate:
    """The template ``given`` by name or file; without one, the one beside the file ``tokenizer``.

    Raises ``InputError`` if there is none. The template is not run here.
    """
    beside = None if tokenizer == "bytes" else Path(tokenizer).parent
    config = _config(beside / "tokenizer_config.json") if beside else {}
    where, text = _given(given) if given else _beside(tokenizer, beside, config)
    return ChatTemplate(where=where, text=text, tokens=_special_tokens(config))


def _given(given: str) -> tuple[str, str]:
    if given == "chatml":
        return given, CHATML
    return given, _text(Path(given), MOST_TEMPLATE_BYTES)


def _beside(tokenizer: str, folder: Path | None, config: dict[str, Any]) -> tuple[str, str]:
    """The file ``chat_template.jinja`` counts before the configuration, as in transformers."""
    if folder and (file := folder / "chat_template.jinja").is_file():
        return str(file), _text(file, MOST_TEMPLATE_BYTES)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if folder is None or not isinstance(found, str):
        raise InputError(
            f"--tokenizer {tokenizer}: has no chat template beside it (chat_template.jinja, or chat_template "
            "in tokenizer_config.json); name a file, or chatml, with --chat-template"
        )
    where = str(folder / "tokenizer_config.json")
    if len(found.encode(errors="replace")) > MOST_TEMPLATE_BYTES:
        raise _too_large(where, MOST_TEMPLATE_BYTES)
    return where, found


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        body = json.loads(_text(file, _MOST_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is not JSON ({error}); bring the tokenizer's own") from None
    if not isinstance(body, dict):
        raise InputError(f"{file}: holds no object; bring the tokenizer's own")
    return body


def _special_tokens(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """A token is its text, or an object with it as ``content``."""
    held = ((name, config.get(name)) for name in _TOKENS)
    texts = ((name, token.get("content") if isinstance(token, dict) else token) for name, token in held)
    return tuple((name, text) for name, text in texts if isinstance(text, str))


def _text(file: Path, most_bytes: int) -> str:
    try:
        data = read_named(file, most_bytes)
    except OSError as error:
        raise InputError(f"{file}: can't be read ({error.strerror}); name the template's file") from None
    if len(data) > most_bytes:
        raise _too_large(str(file), most_bytes)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{file}: is not UTF-8; convert it first, such as with iconv") from None


def _too_large(where: str, most_bytes: int) -> InputError:
    return InputError(f"{where}: is larger than {most_bytes:,} bytes; expected a chat template of a model")
