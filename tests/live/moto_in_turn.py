"""moto, answering one request at a time: ``python -m tests.live.moto_in_turn PORT``.

On its own moto looks whether an object exists and then writes, while other threads do the same, so of several
who create one name more than one may win. In S3 one wins; in turn one wins here too.
"""

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def in_turn(application: Application) -> Application:
    """Bodies still arrive side by side; only what is done with them is done in turn."""
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with lock:
            return [b"".join(application(environ, start_response))]

    return answer


if __name__ == "__main__":
    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), in_turn(moto), threaded=True)
