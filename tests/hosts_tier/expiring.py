"""Object storage whose keys expire in the middle of an upload, and are good again later."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.live.moto_in_turn import Application

_ANSWER = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def expiring(application: Application) -> Application:
    """Once the file ``TEST_EXPIRY`` says for how many seconds, half of the next share of a rank is read, and
    from then on every request is refused for so long. A file beside it, ``.refused``, has their number.
    """
    file = Path(os.environ["TEST_EXPIRY"])
    until, refused = 0.0, 0

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        nonlocal until, refused
        is_share = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith(".safetensors")
        if is_share and not until and file.is_file() and file.stat().st_size:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            until = time.monotonic() + float(file.read_text())
        if time.monotonic() < until:
            refused += 1
            file.with_suffix(".refused").write_text(str(refused))
            start_response("400 Bad Request", [("Content-Type", "application/xml"), ("Connection", "close")])
            return [_ANSWER]
        return application(environ, start_response)

    return answer
