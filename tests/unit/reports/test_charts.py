"""The charts of a report: the same bytes each time, looks that never change, nothing that breaks a page."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import FIRST_CHART, Chart, Comparison, Findings, Money, Price, Prices
from reporting.charts import wording
from reporting.charts.choice import MOST_GROUPS, MOST_STRATEGIES
from reporting.charts.drawing import draw, drawings
from reporting.charts.looks import group_looks, strategy_look
from reporting.charts.marks import apart
from reporting.charts.sheet import own_style
from reporting.charts.svg import INK, SURFACE
from reporting.charts.trainings.traces import downsampled
from reporting.long_runs.summary import LongRun
from reporting.results.rows import Row
from tests.unit.example_findings import (
    STRATEGIES,
    empty_findings,
    example_findings,
    findings,
    hostile_findings,
    long_run,
    summary,
)
from tests.unit.result_rows import row

# In the order of a page, each with what its axes or titles say of the unit.
UNITS = {
    "verdicts": ["The same settings", "nvidia (simulated) faster  |  amd (simulated) faster"],
    "comparison_plot": ["Step time (s)", "tokens/s", "GB per device", "Step-time distribution (s)"],
    "tokens_per_sec_vs_gpu": ["tokens/s, all devices", "devices"],
    "step_time_vs_gpu": ["optimizer step (s)", "devices"],
    "scaling_efficiency": ["efficiency (%)", "devices"],
    "gbps_vs_gpu": ["GB/s per device", "devices"],
    "memory_vs_limit": ["GB per device", "85.0 GB"],
    "throughput_memory_pareto": ["tokens/s per device", "peak memory (GB per device)"],
    "heatmap_strategy_micro_batch": ["tokens/s per device", "micro-batch (sequences per device)"],
    "loss_curves": ["loss (nats per token)", "optimizer steps"],
    "goodput": ["Goodput (%)", "time since the first start (h)"],
    "power_clock": ["Power (W per device)", "Clock (GHz)", "time since the first start (h)"],
}
OF_GROUPS = [name for name in UNITS if name not in ("loss_curves", "goodput", "power_clock")]
LIGHT, DARK = "#ffffff", "#14171c"

IN_A_NEW_PROCESS = """
from tests.unit.reports.test_charts import digest, drawn
print(digest(drawn()))
"""


def drawn() -> tuple[Chart, ...]:
    return draw(example_findings())


def digest(charts: tuple[Chart, ...]) -> str:
    return hashlib.sha256(b"".join(repr(chart).encode() for chart in charts)).hexdigest()


def names_of(found: Findings) -> list[str]:
    return [chart.name for chart in draw(found)]


def texts_of(chart: Chart) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(chart.svg).iter() if is_text(node)]


def is_text(node: "ElementTree.Element[str]") -> bool:
    return node.tag.endswith("}text")


def only_losses() -> LongRun:
    return replace(long_run(), goodput_trace=(), phases={}, power_watts={}, clock_mhz={})


@pytest.fixture(scope="module")
def charts() -> dict[str, Chart]:
    return {chart.name: chart for chart in drawn()}


def test_findings_with_everything_give_every_chart_in_the_order_of_a_page(charts: dict[str, Chart]) -> None:
    assert list(charts) == list(UNITS)


def test_a_new_process_in_another_place_draws_the_same_bytes(
    charts: dict[str, Chart], tmp_path: Path
) -> None:
    """Neither the user's matplotlibrc nor the zone, the backend or the seed of hashes has a say."""
    (tmp_path / "matplotlibrc").write_text("font.size: 30\naxes.labelpad: 30\ntimezone: Asia/Tokyo\n")
    place = {"MATPLOTLIBRC": str(tmp_path), "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "MPLBACKEND": "pdf"}
    # The oldest matplotlib calls what the newest pyparsing warns of.
    quiet = ["-W", "error::UserWarning", "-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *quiet, "-c", IN_A_NEW_PROCESS]
    done = subprocess.run(
        command,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | place,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest(tuple(charts.values()))


def test_drawing_twice_gives_the_same_bytes() -> None:
    found = findings(runs=(only_losses(),))
    assert draw(found) == draw(found)


@pytest.mark.parametrize("name", UNITS)
def test_a_chart_names_its_units(charts: dict[str, Chart], name: str) -> None:
    text = "\n".join(texts_of(charts[name]))
    assert [unit for unit in UNITS[name] if unit not in text] == []


@pytest.mark.parametrize("name", UNITS)
def test_a_chart_comes_as_pixels_and_in_words_too(charts: dict[str, Chart], name: str) -> None:
    chart = charts[name]
    assert chart.png.startswith(b"\x89PNG") and b"Software" not in chart.png and b"tIME" not in chart.png
    assert chart.title and chart.caption.endswith(".") and chart.alt.endswith(".")


@pytest.mark.parametrize("name", OF_GROUPS)
def test_a_simulated_group_is_called_so(charts: dict[str, Chart], name: str) -> None:
    words = " ".join(texts_of(charts[name]))
    assert all(f"{group} (simulated)" in words for group in ("nvidia", "amd"))


def test_how_often_each_point_was_measured_is_said(charts: dict[str, Chart]) -> None:
    assert "n = 5 runs per cell; medians with 95 % intervals." in charts["tokens_per_sec_vs_gpu"].caption


def of_comparisons(*found: Comparison) -> list[Chart]:
    return [chart for chart in draw(with_comparisons(*found)) if chart.name.startswith(FIRST_CHART)]


def with_comparisons(*found: Comparison) -> Findings:
    """The first pictures are of two groups with these comparisons alone, and of what they cost."""
    prices = Prices(
        currency="EUR",
        groups=(Price(group="amd", per_device_hour=3.0), Price(group="nvidia", per_device_hour=2.0)),
    )
    money = Money(prices=prices, tokens=None, goodputs={}, costs=(), break_evens=())
    return replace(example_findings(), comparisons=found, cells=(), rows=(), runs=(), money=money)


def test_the_first_picture_shows_each_comparison_and_the_price_at_which_it_turns() -> None:
    (chart,) = of_comparisons(*example_findings().comparisons[:3])
    texts = texts_of(chart)
    assert "Upper axis: at which price in EUR per hour a device of amd is worth as much" in chart.caption
    assert "the dashed line is its price." in chart.caption
    assert {"The same settings", "x1", "x2", "x4"} <= {*texts, *(text.split()[-1] for text in texts)}
    assert {"2.00", "1.025x"} <= {*texts}
    assert "Each at its best" not in texts


def test_a_ratio_whose_interval_leaves_the_picture_stands_at_its_edge() -> None:
    wide = replace(example_findings().comparisons[0], ratio=1.2, low=0.7, high=9.0)
    (first, *_) = drawings(with_comparisons(wide))
    ((text, right),) = [
        (text, axes.get_xlim()[1])
        for axes in first.figure.axes
        for text in axes.texts
        if text.get_text() == "1.20"
    ]
    assert isinstance(text, Annotation)
    assert text.xy[0] == right < 9.0


def test_what_has_no_ratio_has_no_dot_and_of_many_the_decided_are_drawn() -> None:
    known = example_findings().comparisons
    assert of_comparisons(replace(known[0], ratio=None)) == []
    (chart,) = of_comparisons(*known)
    num_known = sum(each.ratio is not None for each in known)
    assert f"{num_known - 14} comparisons more: see the table." in chart.caption


def test_failed_cells_are_shown_as_such(charts: dict[str, Chart]) -> None:
    assert "zero3: crash" in texts_of(charts["tokens_per_sec_vs_gpu"])
    assert "oom" in texts_of(charts["memory_vs_limit"])


def test_only_what_ran_out_of_memory_is_hatched_in_the_heat_map(charts: dict[str, Chart]) -> None:
    heat_map = charts["heatmap_strategy_micro_batch"]
    assert heat_map.svg.count("<pattern") == 1 and "oom" in texts_of(heat_map)
    healthy = [cell for cell in example_findings(("amd",)).cells if cell.subject.micro_batch >= 4]
    (same,) = (chart for chart in draw(findings(cells=tuple(healthy))) if chart.name == heat_map.name)
    assert "<pattern" not in same.svg


def test_incidents_are_marked_under_the_goodput(charts: dict[str, Chart]) -> None:
    texts = texts_of(charts["goodput"])
    assert {"failure", "restore", "save", "recompute"} <= set(texts)
    assert any(text.startswith("attempt 1, node") for text in texts)


def test_a_drawing_fits_into_a_page_of_any_theme_beside_others(charts: dict[str, Chart]) -> None:
    seen: set[str] = set()
    for chart in charts.values():
        root = chart.svg[: chart.svg.index(">")]
        assert root.startswith("<svg") and "viewBox" in root and not re.search(r"\s(width|height)=", root)
        assert "currentColor" in chart.svg and INK not in chart.svg and SURFACE not in chart.svg
        assert "<style" not in chart.svg and "<?xml" not in chart.svg
        ids = set(re.findall(r'\sid="([^"]*)"', chart.svg))
        assert set(re.findall(r'(?:url\(#|href="#)([^")]*)', chart.svg)) == ids
        assert not ids & seen
        seen |= ids


def test_all_drawings_together_are_small(charts: dict[str, Chart]) -> None:
    assert sum(len(chart.svg) for chart in charts.values()) < 500_000


def test_a_number_is_written_on_the_page_as_it_was_drawn(charts: dict[str, Chart]) -> None:
    """Coordinates are shortened, what is read isn't."""
    assert "0.967" in texts_of(charts["comparison_plot"])


def test_hostile_names_and_numbers_are_harmless() -> None:
    charts = draw(hostile_findings())
    assert charts
    for chart in charts:
        tree = ElementTree.fromstring(chart.svg)
        assert [node.tag for node in tree.iter() if node.tag.endswith("script")] == []
        assert "<script" not in chart.svg


@pytest.mark.parametrize("name", ["$x_1^2$ \\frac{ü}", f'a id="1.2345" {INK}', "_private", "100 %d {0}"])
def test_a_name_is_written_as_it_is_and_never_read_as_markup(name: str) -> None:
    (losses,) = draw(findings(runs=(replace(only_losses(), name=name),)))
    assert name in "\n".join(texts_of(losses))


def test_nothing_to_show_gives_no_charts() -> None:
    assert draw(empty_findings()) == ()


def test_runs_alone_give_only_the_charts_that_they_have_something_for() -> None:
    assert names_of(findings(runs=(only_losses(),))) == ["loss_curves"]
    idle = replace(long_run(), losses=(), val_losses=(), goodput_trace=(), phases={}, clock_mhz={})
    assert names_of(findings(runs=(idle,))) == ["power_clock"]


def test_one_cell_without_memory_is_compared_with_nothing() -> None:
    found = example_findings()
    cell = replace(found.cells[0], peak_vram_gb=None, h2d_gbps_per_gpu=None, scaling_efficiency_pct=None)
    assert names_of(findings(cells=(cell,))) == []


def test_a_curve_has_at_least_two_sizes_and_says_if_it_has_intervals() -> None:
    found = example_findings()
    one_size = tuple(cell for cell in found.cells if cell.subject.world_size == 2)
    assert not [name for name in names_of(findings(cells=one_size)) if name.endswith("_vs_gpu")]
    captions = {chart.name: chart.caption for chart in draw(found)}
    assert "with 95 % intervals" in captions["step_time_vs_gpu"]
    assert "intervals" not in captions["scaling_efficiency"]
    assert "intervals" not in captions["gbps_vs_gpu"]


def test_of_too_much_the_richest_is_drawn_and_the_caption_says_so() -> None:
    subject = example_findings().cells[0].subject
    cells = tuple(
        summary(
            replace(subject, model=f"model-{model}", strategy=f"way-{way}", world_size=2**power),
            f"group-{group}",
            (Row(source="made up", tokens_per_sec=100.0 * 2**power, mean_step_time_sec=0.1),),
        )
        for model in range(4) for way in range(9) for power in range(3) for group in range(5)
    )  # fmt: skip
    rates = next(chart for chart in draw(findings(cells=cells)) if chart.name == "tokens_per_sec_vs_gpu")
    texts = texts_of(rates)
    assert len({text for text in texts if text.startswith("way-")}) == MOST_STRATEGIES
    assert len({text for text in texts if text.startswith("group-")}) == MOST_GROUPS
    assert "of 540 cells are drawn" in rates.caption


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "cpu", "another", None])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_group_can_be_seen_on_light_and_on_dark(vendor: str | None, number: int) -> None:
    looks = group_looks([(f"group {place}", vendor) for place in range(number)])
    colour = looks[f"group {number - 1}"].colour
    assert min(contrast(colour, LIGHT), contrast(colour, DARK)) >= 3.0


def contrast(one: str, other: str) -> float:
    """As the web's accessibility guidelines define it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_known_strategies_differ_in_marker_and_vendors_in_colour() -> None:
    assert len({strategy_look(strategy).marker for strategy in STRATEGIES}) == len(STRATEGIES)
    looks = group_looks([("a", "nvidia"), ("b", "amd"), ("c", "cpu"), ("d", "another")])
    assert len({look.colour for look in looks.values()}) == 4


def test_an_unknown_strategy_looks_the_same_whoever_is_beside_it() -> None:
    assert strategy_look("hsdp") == strategy_look("hsdp")
    assert strategy_look("hsdp") not in [strategy_look(strategy) for strategy in STRATEGIES]


def test_a_groups_look_depends_on_its_vendor_and_not_on_who_came_first() -> None:
    looks = group_looks([("west", "amd"), ("east", "nvidia")])
    assert looks == group_looks([("east", "nvidia"), ("west", "amd"), ("west", "amd")])
    assert looks["east"] == group_looks([("north", "nvidia")])["north"]
    assert looks["east"] != looks["west"]


def test_two_groups_of_one_vendor_differ() -> None:
    looks = group_looks([("h100", "nvidia"), ("a100", "nvidia"), ("l40s", "nvidia")])
    assert len(set(looks.values())) == len({look.colour for look in looks.values()}) == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.8421, "0.842"), (0.5, "0.5"), (9.0, "9.00"), (34.94, "34.9"), (999.4, "999"),
        (999.9, "1.00k"), (34_940, "34.9k"), (251_247, "251k"), (1_254_000, "1.25M"), (2.5e-7, "2.5e-07"),
    ],
)  # fmt: skip
def test_a_number_has_three_digits_and_a_prefix(value: float, text: str) -> None:
    assert wording.short(value) == text


@pytest.mark.parametrize(("value", "text"), [(252_500, "252.5k"), (0.25, "0.25"), (0, "0"), (-5, "-5")])
def test_a_tick_is_as_exact_as_its_axis(value: float, text: str) -> None:
    assert wording.tick(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2.00 s"), (140, "140 s"), (1_110, "18.5 min"), (86_400, "24.0 h"), (864_000, "10.0 days")],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_models_that_differ_in_their_digests_alone_are_told_apart() -> None:
    names = [
        wording.model_of(f"meta-llama-3.2-1b-instruct-{digest}", 18) for digest in ("0a1b2c3d", "4e5f6a7b")
    ]
    assert names == ["meta-lla…-0a1b2c3d", "meta-lla…-4e5f6a7b"]
    assert wording.model_of("llama-tiny", 18) == "llama-tiny"


@given(st.text())
def test_a_name_is_one_short_printable_line(text: str) -> None:
    name = wording.name_of(text, 20)
    assert name and name.isprintable() and len(name) <= 20


@given(st.lists(st.floats(0.0, 1.0), max_size=8))
def test_labels_keep_their_order_and_do_not_touch(heights: list[float]) -> None:
    placed = apart(sorted(heights), 0.1)
    assert all(above - below >= 0.1 - 1e-9 for below, above in pairwise(placed))
    assert all(-1e-9 <= place <= 1.0 for place in placed)


@given(st.lists(st.floats(), min_size=20, max_size=60), st.integers(4, 19))
def test_a_thinned_trace_keeps_its_peaks_and_what_can_be_drawn(values: list[float], most: int) -> None:
    kept = downsampled(list(enumerate(values)), most)
    assert len(kept) <= most and kept == sorted(kept)
    if can_be_drawn := [value for value in values if wording.is_number(value)]:
        assert {min(can_be_drawn), max(can_be_drawn)} <= {value for _, value in kept}


_IMPORT = """
import os, sys
from reporting.charts.importing import undisturbed
with undisturbed():
    import reporting.charts.drawing
print(os.getcwd(), os.environ["MPLBACKEND"], "MATPLOTLIBRC" in os.environ)
"""


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.write_bytes(b"\xff\x00")])
def test_no_file_beside_the_user_and_no_variable_disturbs_the_drawing(
    tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    plant(tmp_path / "matplotlibrc")
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "MPLBACKEND": "none such",
            "HOME": os.devnull,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path} none such False\n"


_SETTINGS: dict[str, Any] = {
    "activation_checkpointing": "full", "cross_entropy": "chunked", "compile": "block", "attention": "flash",
    "fp8": "tensorwise", "offload": "optimizer", "shard_within": 8,
}  # fmt: skip


def _long(letter: str) -> str:
    return letter * 200


@pytest.mark.parametrize("names", [(_long("a"), _long("b")), ("amd", "nvidia")], ids=["long", "short"])
def test_no_text_of_a_picture_covers_another_however_long_names_and_settings_are(
    names: tuple[str, str],
) -> None:
    is_long = len(names[0]) > 10
    model, strategies = (_long("m"), (_long("s"), "ddp")) if is_long else ("llama-tiny", ("ddp", "fsdp"))
    rows = [
        row(
            speed * noise * world_size, group=name, model=model, strategy=strategy, world_size=world_size,
            cell_id=f"{name}-{strategy}-{world_size}-{settings}", simulated=True, peak_vram_gb=9.0,
            raw_step_times=(0.1, 0.11, 0.12), **settings,
        )
        for name, speed in zip(names, (1000.0, 1100.0), strict=True)
        for strategy in strategies
        for world_size in (1, 2)
        for settings in ({}, _SETTINGS)
        for noise in (0.999, 1.0, 1.0, 1.001)
    ]  # fmt: skip
    prices = Prices(currency="USD", groups=tuple(Price(group=name, per_device_hour=1.0) for name in names))
    with own_style():
        found = [_covering(one.figure) for one in drawings(conclude("x", "results", rows, prices=prices))]
    assert len(found) > 4
    assert [texts for texts in found if texts] == []


def _covering(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of which one covers more than a fifth of the other."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    unseen = set(_beyond_the_scale(figure))
    texts = [
        one
        for one in figure.findobj(Text)
        if one.get_visible() and one.get_text().strip() and one not in unseen
    ]
    boxes = [(one.get_text(), one.get_window_extent(canvas.get_renderer())) for one in texts]
    return [(text, other) for (text, a), (other, b) in combinations(boxes, 2) if _share(a, b) > 0.2]


def _beyond_the_scale(figure: Figure) -> Iterator[Text]:
    """Labels of ticks that a locator gives and an axis never draws, since its scale ends before."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        yield from (tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high)


def _share(a: Bbox, b: Bbox) -> float:
    wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    smaller = min(a.width * a.height, b.width * b.height)
    return wide * high / smaller if min(wide, high, smaller) > 0 else 0.0


def test_without_single_steps_no_caption_explains_their_distribution() -> None:
    rows = [row(1000.0, group=group, cell_id=group) for group in ("amd", "nvidia")]
    steps = [replace(each, raw_step_times=(0.064,) * 20) for each in rows]
    told = []
    for own in (rows, steps):
        charts = {chart.name: chart for chart in draw(conclude("trial", "results", own))}
        told.append("The distribution is that of" in charts["comparison_plot"].caption)
    assert told == [False, True]
