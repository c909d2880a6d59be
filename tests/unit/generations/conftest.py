"""Both forms of a manifest, for the tests that use ``each_form``."""

import pytest

from checkpointing.format import pieces


@pytest.fixture(params=["one object", "pieces"])
def each_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs twice: with manifests of one object, and with those in pieces."""
    if request.param == "pieces":
        monkeypatch.setattr(pieces, "MOST_IN_ONE_OBJECT", 0)
