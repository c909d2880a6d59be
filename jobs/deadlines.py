"""A call that may never return is waited for so long and no longer."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def within(timeout_s: float, do: Callable[[], Answer]) -> Answer:
    """What it returns or raises; ``TimeoutError`` once the time is over. It goes on by itself then, in a
    thread of its own that keeps no process alive.
    """
    box: queue.Queue[tuple[Answer | None, Exception | None]] = queue.Queue()

    def work() -> None:
        try:
            box.put((do(), None))
        except Exception as error:
            box.put((None, error))

    threading.Thread(target=work, name="within", daemon=True).start()
    try:
        answer, error = box.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # there is one where there is no error
