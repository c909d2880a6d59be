"""The page of ``longhaul watch`` in a real browser: it changes by itself, and nothing is complained of."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from checkpointing.stores.contract import Unavailable
from checkpointing.stores.local import LocalStore
from jobs.watching.access import Access
from jobs.watching.choosing import Watched
from jobs.watching.command import following
from jobs.watching.server import Site, WatchServer
from tests.live.browser import Browser, Tab, find_chromium, open_page, running_chromium
from tests.live.reports.test_browser import (
    FAINT_TEXTS,
    PHONE,
    SCROLLS_SIDEWAYS,
    WIDER_THAN_THE_PAGE,
    complaints,
)
from tests.unit.watching.watched import HOSTILE, put_run

TOKEN = "a-token-of-enough-letters"
PATIENCE_MS = 30_000


class Store(LocalStore):
    """A store that can be away."""

    is_away = False

    def get(self, name: str) -> bytes:
        self._answer()
        return super().get(name)

    def get_range(self, name: str, start: int, into: memoryview) -> int:
        self._answer()
        return super().get_range(name, start, into)

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("store: it does not answer")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on PATH: the page was not looked at in a browser")
    with running_chromium(program, tmp_path_factory.mktemp("chromium") / "profile") as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "results")
    put_run(store, why=HOSTILE)
    return store


@pytest.fixture
def address(store: Store) -> Iterator[str]:
    with following(store, Watched(kind="run", name="r"), with_charts=True) as found:
        site = Site(found.snapshot, Access(token=TOKEN))
        with WatchServer("127.0.0.1", 0, site) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{server.address[1]}/"
            server.shutdown()
            thread.join()


def wait_until(tab: Tab, condition: str) -> Any:
    """Waits in the page until ``condition`` holds."""
    promise = f"""new Promise((done, fail) => {{
        const end = Date.now() + {PATIENCE_MS};
        const look = () => {{
          if ({condition}) done(true);
          else if (Date.now() > end) fail(new Error(document.body.innerText));
          else setTimeout(look, 50);
        }};
        look();
      }})"""
    done = tab.call("Runtime.evaluate", expression=promise, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in done, done["exceptionDetails"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", PHONE)])
def test_the_page_follows_the_run_and_nothing_is_complained_of(
    browser: Browser, store: Store, address: str, scheme: Literal["light", "dark"], width: int
) -> None:
    with open_page(browser, f"{address}#{TOKEN}", scheme=scheme, width=width) as tab:
        wait_until(tab, "document.querySelectorAll('img[data-chart][src]').length === 2")
        wait_until(tab, "[...document.images].every((image) => image.complete && image.naturalWidth > 100)")
        assert "35 of 40" in tab.evaluate("document.getElementById('now').innerText")
        # The token is neither in the address nor in what a page of another port would be sent.
        assert tab.evaluate("location.href + document.cookie") == address

        told = json.loads(store.get("runs/r/status.json"))
        store.put("runs/r/status.json", json.dumps({**told, "step": 36}).encode())
        wait_until(tab, "document.getElementById('now').innerText.includes('36 of 40')")

        assert complaints(tab) == []
        assert tab.evaluate(SCROLLS_SIDEWAYS) is False
        assert tab.evaluate(WIDER_THAN_THE_PAGE) == []
        assert tab.evaluate(FAINT_TEXTS) == []
        assert {one["request"]["url"].partition(":")[0] for one in tab.seen("Network.requestWillBeSent")} <= {
            "http",
            "blob",
        }


def test_a_store_that_goes_away_is_said_with_the_age_of_the_figures(
    browser: Browser, store: Store, address: str
) -> None:
    with open_page(browser, f"{address}#{TOKEN}") as tab:
        wait_until(tab, "document.getElementById('now') !== null")
        store.is_away = True
        wait_until(tab, "document.getElementById('troubles')?.innerText.includes('it does not answer')")
        assert "These figures are" in tab.evaluate("document.getElementById('troubles').innerText")
        assert "35 of 40" in tab.evaluate("document.getElementById('now').innerText")
        store.is_away = False
        wait_until(tab, "document.getElementById('troubles') === null")


def test_who_comes_without_the_token_is_asked_for_it(browser: Browser, address: str) -> None:
    with open_page(browser, address) as tab:
        assert tab.evaluate("document.getElementById('ask').hidden") is False
        tab.call("Input.insertText", text=TOKEN)
        tab.press("Enter")
        wait_until(tab, "document.getElementById('now') !== null")
        assert tab.evaluate("document.getElementById('ask')") is None
        assert complaints(tab) == []
