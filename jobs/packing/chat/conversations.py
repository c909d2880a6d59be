"""Checks the messages of one row of chat data. Pure."""

from collections.abc import Sequence
from typing import Any

from jobs.packing.pieces import InputError

Message = dict[str, Any]
ASSISTANT = "assistant"
ROLES = ("system", "developer", "user", ASSISTANT, "tool")
# A template may look at each message for each message.
MOST_MESSAGES = 2_000
MOST_CHARACTERS = 4 * 2**20


def conversation(value: object, column: str, where: object) -> list[Message]:
    """The messages in ``value``, without keys that hold nothing. Raises ``InputError``."""
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{where}: {column!r} is {value!r:.40}, expected a list of messages, each "
            "{'role': ..., 'content': ...}; mend or remove it, or name another column with --column"
        )
    if len(value) > MOST_MESSAGES:
        raise InputError(
            f"{where}: has {len(value):,} messages, expected at most {MOST_MESSAGES:,}; split or remove it"
        )
    messages = [_message(one, f"{where}: message {number}") for number, one in enumerate(value, start=1)]
    _check_words(messages, where)
    return messages


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r:.40}, expected {{'role': ..., 'content': ...}}; mend it")
    message = {key: held for key, held in value.items() if held is not None}
    role = message.get("role")
    if role not in ROLES:
        found = f"has the role {role!r:.40}" if role is not None else f"has no role ({_names(message)})"
        raise InputError(f"{where} {found}, expected one of {', '.join(ROLES)}; rename it")
    if message.get("tool_calls"):
        raise InputError(f"{where} has tool_calls, which are not supported; write them into its content")
    content = message.get("content")
    if not isinstance(content, str):
        raise InputError(f"{where} has the content {content!r:.40}, expected text; mend or remove it")
    if role == ASSISTANT and not content.strip():
        raise InputError(f"{where} is an assistant's and has no words; remove it with what led to it")
    return message


def _names(message: Message) -> str:
    return ", ".join(map(str, message)).encode(errors="backslashreplace").decode()[:80]


def _check_words(messages: Sequence[Message], where: object) -> None:
    if all(message["role"] != ASSISTANT for message in messages):
        raise InputError(f"{where}: no message is an assistant's, so there is nothing to learn; remove it")
    if (total := sum(len(message["content"]) for message in messages)) > MOST_CHARACTERS:
        raise InputError(
            f"{where}: has {total:,} characters, expected at most {MOST_CHARACTERS:,}; split or remove it"
        )
    for text in (held for message in messages for held in message.values() if isinstance(held, str)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise InputError(f"{where}: has half a character ({half!r}); mend or remove it") from None
