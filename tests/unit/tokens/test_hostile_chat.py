"""What hostile conversations and templates may cost, and that they are refused in words."""

from collections.abc import Iterator

import pytest

from jobs.packing.chat import bounding
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
        "{% for i in range(300) %}{% set l = range(10000) | sort %}{% endfor %}",
        "{% for i in range(300) %}{% set l = range(10000) | min %}{% endfor %}",
        "{% for i in range(30) %}{% set l = range(10000) | map('string') | max %}{% endfor %}",
        "{% set l = range(10000) | list %}{% for i in range(300) %}{% if 'a' in l %}{% endif %}{% endfor %}",
        "{% set l = range(10000) | list %}{% for i in range(300) %}{% set m = l[:5000] + l[:5000] %}"
        "{% endfor %}",
        "{% set s = {'a': 'x' * 8000000} %}{% for i in range(30) %}{% set t = s == {'a': 1} %}{% endfor %}",
        "{% set s = ['x' * 8000000] %}{% for i in range(30) %}{% set t = s | sort %}{% endfor %}",
        "{% set s = ['x' * 800000] %}{% for i in range(300) %}{% set t = s | tojson %}{% endfor %}",
        "{% set n = namespace(l=[]) %}{% set s = 'x' * 800000 %}{% for i in range(300) %}"
        "{% set n.l = n.l + [s ~ i] %}{% endfor %}",
        "{% set s = 'x' * 800000 %}{% for i in range(300) %}{% set t %}{{ s }}{% endset %}{% endfor %}",
        "{% set l = range(10000) | list %}{% for i in range(30) %}{% set t = l.count('a') %}{% endfor %}",
        "{% for i in range(30) %}{% set t = range(10000).count('a') %}{% endfor %}",
        "{% set l = range(10000) | list %}{% set t = range(30) | select('in', l) | list %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% set t = 'y'.strip(s) %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% set t = 'y' | trim(chars=s) %}{% endfor %}",
        "{% set l = ['x' * 800000] * 999 %}{% for i in range(30) %}{% set t = loop.changed(l) %}{% endfor %}",
        "{% for i in range(300) %}{% set t = loop.cycle(*range(9999)) %}{% endfor %}",
        "{% macro m() %}{% if varargs %}{% endif %}{% endmacro %}"
        "{% for i in range(300) %}{% set t = m(*range(9999)) %}{% endfor %}",
        "{% set k = ((1,) * 9990,) * 999 %}{% set t = {}[k] %}",
        "{% set k = ((1,) * 9990,) * 999 %}{% set t = {}.get(k) %}",
        "{% set k = ((1,) * 9990,) * 999 %}{% set t = {k: 1} %}",
        "{% set s = 'x' * 8000000 %}{% for i in range(30) %}{% set t = {}[s] %}{% endfor %}",
    ],
)
def test_filters_and_inner_loops_cost_what_they_do(text: str) -> None:
    with pytest.raises(InputError, match=r"steps|longer"):
        Template(ChatTemplate(where="t", text=text)).render(_MESSAGES)


@pytest.mark.parametrize(
    "run",
    [
        "title",
        "unique",
        "sort",
        "min",
        "max",
        "select('eq', 'b')",
        "reject",
        "selectattr('b')",
        "map('upper')",
    ],
)
def test_what_goes_through_a_text_character_by_character_costs_each_of_them(run: str) -> None:
    text = "{% set s = 'a ' * 4000000 %}{% set t = s | " + run + " %}"
    with pytest.raises(InputError, match="steps"):
        Template(ChatTemplate(where="t", text=text)).render(_MESSAGES)
    words = ChatTemplate(where="t", text="{{ messages[0].content | title }}")
    messages = [{**_MESSAGES[0], "content": "an example " * 10_000}]
    assert Template(words).render(messages) == "An Example " * 10_000


@pytest.mark.parametrize(
    "text",
    [
        "{{% for i in range(100) %}}{}{{% endfor %}}",
        "{{% macro m() %}}{}{{% endmacro %}}{{% for i in range(100) %}}{{% set t = m() %}}{{% endfor %}}",
        "{{% for i in [1] recursive %}}{}{{{{ loop(range(2, 102)) if i == 1 }}}}{{% endfor %}}",
        "{{% block b %}}{}{{% endblock %}}{{% for i in range(100) %}}{{% set t = self.b() %}}{{% endfor %}}",
    ],
)
def test_what_a_loop_or_a_macro_holds_counts_each_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "MOST_STEPS", 2000)
    short, long = (text.format("{% if i %}{% endif %}" * count) for count in (1, 800))
    Template(ChatTemplate(where="t", text=short)).render(_MESSAGES)
    with pytest.raises(InputError, match="steps"):
        Template(ChatTemplate(where="t", text=long)).render(_MESSAGES)


@pytest.mark.parametrize(
    "text",
    [
        "{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=-1) %}{% for i in range(99) %}{% set n.x = n.x - 9e18|int %}{% endfor %}",
        "{% set x = ('f' * 8000000)|int(0, 16) // 3 %}",
        "{% set x = 4000000000 * 4000000000 %}",
        "{% set x = (1).to_bytes(800000000, 'big') %}",
        "{% set x = ''.maketrans('a', 'b') %}",
        "{% set x = {}.fromkeys(range(9)) %}",
        "{% set x = ('<!---->' * 1000)|safe %}{{ x.striptags() }}",
    ],
)
def test_what_nothing_counts_is_not_there(text: str) -> None:
    with pytest.raises(InputError, match=r"too large|is unsafe"):
        Template(ChatTemplate(where="t", text=text)).render(_MESSAGES)


def test_a_power_of_ten_hides_in_no_rounding() -> None:
    with pytest.raises(InputError, match="digits"):
        Template(ChatTemplate(where="t", text="{{ 1 | round(-30000) }}")).render(_MESSAGES)
    assert Template(ChatTemplate(where="t", text="{{ 1.26 | round(1) }}")).render(_MESSAGES) == "1.3"


def test_a_long_conversation_costs_no_more_steps_than_there_are() -> None:
    text = (
        "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{% for m in messages[1:] %}{% if loop.index0 == messages | length - 2 %}last{% endif %}"
        "{{ '<' + m.role + '>' ~ m.content | trim }}{% endfor %}"
    )
    messages = [{"role": role, "content": "x" * 2000} for _ in range(1000) for role in ("user", "assistant")]
    assert len(Template(ChatTemplate(where="t", text=text)).render(messages)) > 1999 * 2000


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
