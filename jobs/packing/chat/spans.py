"""Renders a conversation and tells which of its characters are an assistant's.

A template with ``{% generation %}`` says so itself. Of any other one the conversation is rendered up to each
of an assistant's messages, with the words that ask for it, and then with it. What is new are the assistant's
words, with the token that ends them, which a model must learn to say.
"""

import json
from collections.abc import Iterator

from jobs.packing.chat.conversations import ASSISTANT, Message
from jobs.packing.chat.masks import Rendered, Span
from jobs.packing.chat.sandbox import BEGIN, END, Template
from jobs.packing.pieces import InputError

# What may follow an assistant's message, to see where that ends.
_PROBE: Message = {"role": "user", "content": "?"}


def rendered(template: Template, messages: list[Message], where: object) -> Rendered:
    """Raises ``InputError``, which begins with ``where``."""
    try:
        whole = template.render(messages)
        _check_characters(whole)
        if not template.marks:
            return Rendered(text=whole, spans=tuple(_spans(template, messages, whole)))
        _check_unmarked(messages)
        return _unmarked(whole)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _spans(template: Template, messages: list[Message], whole: str) -> Iterator[Span]:
    for index, message in enumerate(messages):
        if message["role"] == ASSISTANT:
            before = template.render(messages[:index], generation_prompt=True)
            if not whole.startswith(before):
                raise _not_apart(index)
            end = _end(template, messages[: index + 1], whole)
            if end <= len(before):
                raise _not_apart(index)
            yield Span(start=len(before), end=end, is_exact=False)


def _end(template: Template, messages: list[Message], whole: str) -> int:
    """Where the last of ``messages`` ends, whatever follows it: some templates end each text with a token."""
    alone = template.render(messages)
    if len(alone) == len(whole):
        try:
            whole = template.render([*messages, _PROBE])
        except InputError:
            return len(alone)  # The template lets nothing follow.
    return _common_length(alone, whole)


def _common_length(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _not_apart(index: int) -> InputError:
    return InputError(
        f"message {index + 1}: the chat template writes what stands before it in another way when it "
        "follows, so which words are the assistant's can't be told; put {% generation %} and "
        "{% endgeneration %} around them in the template, or use another one with --chat-template"
    )


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InputError(f"the chat template writes half a character ({half!r}); mend or remove it") from None


def _check_unmarked(messages: list[Message]) -> None:
    # Also in what a message nests: a template may print any of it.
    text = json.dumps(messages, ensure_ascii=False, default=str)
    if BEGIN in text or END in text:
        raise InputError("has U+FDD0 or U+FDD1, which are no characters; remove them")


def _unmarked(marked: str) -> Rendered:
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    for number, part in enumerate(marked.split(BEGIN)):
        words, end, rest = part.partition(END)
        if bool(number) != bool(end) or END in rest:
            raise InputError("the chat template has {% generation %} inside of {% generation %}")
        if words and end:
            spans.append(Span(start=length, end=length + len(words), is_exact=True))
        parts += [words, rest]
        length += len(words) + len(rest)
    return Rendered(text="".join(parts), spans=tuple(spans))
