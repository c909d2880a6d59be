"""What hostile conversations and templates may cost, and that they are refused in words."""

from collections.abc import Iterator

import pytest

from jobs.packing.chat.masks import Rendered, Span, trained
from jobs.packing.chat.recipe import ChatTemplate
from jobs.packing.chat.sandbox import Template
from jobs.packing.chat.spans import rendered
from jobs.packing.pieces import InputError

_MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "text",
    [
        "{% for x in [1] recursive %}{% if loop.depth < 3 %}{{ loop(range(1500)) }}{% endif %}{% endfor %}",
        "{% set j = (['x' * 8000000] * 3) | tojson %}",
        "{% set n = namespace(s='&' * 4000000) %}{% for i in range(4) %}"
        "{% set n.s = n.s|e|string %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% set t = s | upper %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% if 'y' in s %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% if s is in ['y'] %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% set t = s[1:] %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% set t = (s, 1) < (s, 2) %}{% endfor %}",
    ],
)
def test_filters_and_inner_loops_cost_what_they_do(text: str) -> None:
    with pytest.raises(InputError, match=r"steps|longer"):
        Template(ChatTemplate(where="t", text=text)).render(_MESSAGES)


def test_half_a_character_from_a_template_is_refused_in_words() -> None:
    template = Template(ChatTemplate(where="t", text=r"{{ '\ud800' }}{% generation %}b{% endgeneration %}"))
    with pytest.raises(InputError, match="half a character"):
        rendered(template, _MESSAGES, "row 1")


class Counted(list[tuple[int, int]]):
    passes = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.passes += 1
        return super().__iter__()


def test_many_spans_are_found_in_one_pass() -> None:
    spans = tuple(Span(start=at, end=at + 10, is_exact=False) for at in range(0, 2000, 20))
    offsets = Counted((at, at + 1) for at in range(2000))
    mask = trained(Rendered(text="x" * 2000, spans=spans), offsets)
    assert sum(mask) == 1000
    assert offsets.passes == 1


def test_what_a_message_nests_marks_no_words_as_an_assistants() -> None:
    text = "{% for m in messages %}{{ m.extra.x if m.extra }}{% generation %}b{% endgeneration %}{% endfor %}"
    planted = [{**_MESSAGES[0], "extra": {"x": "\ufdd0planted\ufdd1"}}, _MESSAGES[1]]
    with pytest.raises(InputError, match="FDD0"):
        rendered(Template(ChatTemplate(where="t", text=text)), planted, "row 1")
