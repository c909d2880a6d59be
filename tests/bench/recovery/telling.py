"""``longhaul`` whose driver notes when it hears of what: ``tests.bench.recovery.telling FILE train ...``

Each line of FILE is a moment, what was told, and by which rank.
"""

import sys
import time
from pathlib import Path
from typing import Any

from jobs.execution.board import Assembled, Leaving, Left, Lost, Raised, Ready
from jobs.launch.ray_train import attempts
from jobs.training.task.events import Resumption

_TOLD = (Assembled, Leaving, Left, Lost, Raised, Ready, Resumption)


def main() -> int:
    file, *words = sys.argv[1:]
    with Path(file).open("a", buffering=1) as lines:
        hear, begin = attempts._Followed._take, attempts._begin

        def note(what: str, rank: object = "") -> None:
            lines.write(f"{time.time()} {what} {rank}\n")

        def heard(followed: Any, post: Any, listen: Any) -> None:
            if isinstance(post, _TOLD):
                note(type(post).__name__, getattr(post, "rank", ""))
            hear(followed, post, listen)

        def begun(*order: Any) -> Any:
            note("begin")
            return begin(*order)

        attempts._Followed._take = heard  # type: ignore[method-assign]  # a look at what passes
        attempts._begin = begun
        from jobs.cli.__main__ import main as longhaul

        sys.argv = ["longhaul", *words]
        longhaul()
    return 0


if __name__ == "__main__":
    sys.exit(main())
