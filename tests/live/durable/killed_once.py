"""An example whose rank 1 is killed once, before a step ends: ``killed_once EXAMPLE STEP MARK ARGUMENTS``.

``torchrun`` starts this file in place of the example. Each rank leaves a file beside MARK: ``NUMBER.parent``
says of which process number it is a child, ``NUMBER.loaded`` whether torch was there before.
"""

import os
import sys
from pathlib import Path

_HAD_TORCH = "torch" in sys.modules

from tests.live.durable.forked import example_of, kill_this_process_at  # noqa: E402, what came before is told

if __name__ == "__main__":
    example, step, mark, store, num_steps = sys.argv[1:]
    Path(f"{mark}.{os.getpid()}").write_text(f"{os.getppid()} {_HAD_TORCH}", encoding="utf-8")
    if os.environ["RANK"] == "1":
        kill_this_process_at(int(step), once=Path(mark))
    example_of(example).main(store, int(num_steps))
