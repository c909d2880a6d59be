"""Markup is text that is HTML. Only this module turns other text into HTML. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from reporting.analysis.formatting import clean

_LONGEST = 2_000
_QUOTE = '"'
_WITHIN_LINES = frozenset(("a", "code", "i", "small", "span", "strong", "td", "th"))


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that is never escaped again. Only this module makes it, from text, or a caller from a file of
    ours.
    """

    text: str


Content = Markup | str
NOTHING = Markup("")


def element(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """Makes an element. Strings in it are escaped, and cut if they are longer than any text of ours.

    The attribute ``class_`` becomes ``class`` and ``aria_label`` becomes ``aria-label``; one that is None or
    False is left out.
    """
    end = "" if name in _WITHIN_LINES else "\n"
    inner = "".join(html_of(piece) for piece in content)
    return Markup(f"<{name}{_attributes(attributes)}>{inner}</{name}>{end}")


def void(name: str, /, **attributes: str | int | bool | None) -> Markup:
    """Makes an element that has no content and no end tag."""
    return Markup(f"<{name}{_attributes(attributes)}>")


def together(pieces: Iterable[Content]) -> Markup:
    return Markup("".join(html_of(piece) for piece in pieces))


def html_of(content: Content) -> str:
    if isinstance(content, Markup):
        return content.text
    cut = content if len(content) <= _LONGEST else f"{content[: _LONGEST - 1]}…"
    return escape(clean(cut), quote=False)


def _attributes(found: dict[str, str | int | bool | None]) -> str:
    return "".join(
        f" {name.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html_of(str(value)).replace(_QUOTE, "&quot;")}"')
        for name, value in found.items()
        if value is not None and value is not False
    )
