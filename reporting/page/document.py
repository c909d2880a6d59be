"""The document is the page from top to bottom. Pure."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from reporting.analysis.findings import FIRST_CHART, Chart, Findings
from reporting.analysis.formatting import short
from reporting.analysis.selection import extent, simulated_runs
from reporting.page.markup import Markup, element, together, void
from reporting.page.pictures import figures, pictures
from reporting.page.pieces import origin_chips
from reporting.page.sections.answers import answer, comparisons
from reporting.page.sections.costs import costs
from reporting.page.sections.explained import method, repeat
from reporting.page.sections.goals import goals
from reporting.page.sections.goodput import goodput
from reporting.page.sections.machines import machines
from reporting.page.sections.measured import cells
from reporting.page.sections.nodes import nodes
from reporting.page.sections.profiles import profiles
from reporting.page.sections.published import published
from reporting.page.sections.trainings import trainings
from reporting.page.sections.troubles import checks, failed, skipped

# Anchor, name in the table of contents, content. A section without content is left out.
Section = tuple[str, str, Markup]

_HERE = Path(__file__).parent
_ROOM = 4_800_000  # bytes for all sections; style, script and frame are far below the rest of 5 MB


def index_html(findings: Findings, charts: Sequence[Chart]) -> str:
    """Returns the page as one file that needs no other file, below 5 MB. The same findings give the same
    bytes.
    """
    first = [chart for chart in charts if chart.name == FIRST_CHART]
    before, after = _before_charts(findings, figures(first, _ROOM // 4)), _after_charts(findings)
    taken = sum(len(content.text.encode()) for _, _, content in (*before, *after))
    drawn = ("charts", "Charts", pictures([chart for chart in charts if chart not in first], _ROOM - taken))
    sections = [section for section in (*before, drawn, *after) if section[2].text]
    page = element("html", _head(findings), _body(findings, sections), lang="en")
    return f"<!doctype html>\n{page.text}\n"


def _before_charts(findings: Findings, first_charts: Markup) -> tuple[Section, ...]:
    return (
        ("answer", "Answer", answer(findings, first_charts)),
        ("comparisons", "Comparisons", comparisons(findings)),
        ("costs", "Money", costs(findings)),
        ("goals", "Strategies", goals(findings)),
        ("machines", "Machines", machines(findings)),
        ("cells", "Cells", cells(findings)),
        ("published", "Published", published(findings)),
    )


def _after_charts(findings: Findings) -> tuple[Section, ...]:
    return (
        ("profiles", "Profiles", profiles(findings)),
        ("checks", "Checks", checks(findings)),
        ("failures", "Failures", failed(findings)),
        ("nodes", "Nodes", nodes(findings)),
        ("runs", "Long runs", trainings(findings)),
        ("goodput", "Goodput", goodput(findings)),
        ("skipped", "Skipped files", skipped(findings)),
        ("method", "Method", method()),
        ("repeat", "Repeat it", repeat(findings)),
    )


def _head(findings: Findings) -> Markup:
    script = _script()
    return element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        element("title", f"{short(findings.name)} – Longhaul report"),
        element("style", Markup((_HERE / "style.css").read_text(encoding="utf-8"))),
    )


def _body(findings: Findings, sections: Sequence[Section]) -> Markup:
    contents = [element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections]
    return element(
        "body",
        element("a", "Skip to the answer", href="#answer", class_="skip"),
        _header(findings),
        element("nav", element("ul", *contents), aria_label="Contents"),
        element("main", *(content for _, _, content in sections)),
        _footer(),
        element("script", Markup(_script())),
    )


def _header(findings: Findings) -> Markup:
    flags = [
        *(
            ["simulated"]
            if any(row.simulated for row in findings.rows) or simulated_runs(findings.rows, findings.runs)
            else []
        ),
        *(["imported"] if any(row.imported for row in findings.rows) else []),
    ]
    items = [element("li", fact) for fact in (*extent(findings), f"store {short(findings.store, 200)}")]
    contains = together(("Contains", origin_chips(flags), " results")) if flags else ""
    return element(
        "header",
        element("p", "Longhaul report", class_="eyebrow"),
        element("h1", short(findings.name, 200)),
        element("ul", *items, element("li", contains) if flags else "", class_="facts"),
    )


def _footer() -> Markup:
    names = ("metrics.csv", "metrics.parquet", "findings.json")
    csv, parquet, json = (element("a", name, href=name) for name in names)
    runs = ("Beside this page lie every run with every column, ", csv, " and ", parquet)
    return element("footer", element("p", *runs, ", and what this page says as data, ", json, "."))


def _policy(script: str) -> str:
    """Returns a policy under which nothing is fetched, and no script but the page's own runs, whatever a name
    contains.
    """
    digest = b64encode(sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _script() -> str:
    return (_HERE / "tables.js").read_text(encoding="utf-8")
