"""What the checks share: they are skipped where there is no device, and each has a line for what it saw."""

from collections.abc import Callable

import pytest

from tests.gpu.here import facts, nothing_here, versions

Say = Callable[[str], None]


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Dots would stand between the lines. What failed is listed at the end."""
    is_ours = "gpu" in report.keywords and report.when == "call"
    return (report.outcome, "", "") if is_ours else None


@pytest.fixture(scope="session", autouse=True)
def _device(request: pytest.FixtureRequest) -> None:
    if why_not := nothing_here():
        pytest.skip(why_not)
    _line(request, f"on {facts().name}, {versions()}")


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Say:
    """``seen("0.98 of it")`` prints one line, under the check's name."""

    def say(text: str) -> None:
        _line(request, f"{request.node.name.removeprefix('test_').replace('_', ' ')}: {text}")

    return say


def _line(request: pytest.FixtureRequest, text: str) -> None:
    plugins = request.config.pluginmanager
    terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(text)
