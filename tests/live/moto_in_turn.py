"""moto, answering one request at a time: ``python -m tests.live.moto_in_turn PORT``.

On its own moto looks whether an object exists and then writes, while other threads do the same, so of several
who create one name more than one may win. In S3 one wins; in turn one wins here too.

moto leaves the condition ``Null`` of a policy out of account. S3 knows it, and so does this server.
"""

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from flask import request
from moto.iam.access_control import IAMPolicyStatement, PermissionResult
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


def with_null_conditions(judge: Callable[..., PermissionResult]) -> Callable[..., PermissionResult]:
    """As AWS has it: a statement counts only where a header is missing (``true``) or there (``false``)."""

    def judge_if_it_counts(statement: Any, *asked: Any, **more: Any) -> PermissionResult:
        wanted = statement._statement.get("Condition", {}).get("Null", {})
        is_met = [is_null(key) is (said == "true") for key, said in wanted.items()]
        return judge(statement, *asked, **more) if all(is_met) else PermissionResult.NEUTRAL

    return judge_if_it_counts


def is_null(key: str) -> bool:
    return request.headers.get(key.removeprefix("s3:")) is None


if __name__ == "__main__":
    # moto offers no seam for it.
    setattr(  # noqa: B010  (mypy takes no assignment to a method)
        IAMPolicyStatement,
        "is_action_permitted",
        with_null_conditions(IAMPolicyStatement.is_action_permitted),
    )
    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), in_turn(moto), threaded=True)
