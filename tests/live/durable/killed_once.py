"""An example whose process is killed once, before a step ends: ``killed_once EXAMPLE STEP MARK ARGUMENTS``.

``torchrun`` starts this file in place of the example.
"""

import os
import sys
from pathlib import Path

from tests.live.durable.forked import example_of, kill_this_process_at

if __name__ == "__main__":
    example, step, mark, store, num_steps = sys.argv[1:]
    if os.environ["RANK"] == "1":
        kill_this_process_at(int(step), once=Path(mark))
    example_of(example).main(store, int(num_steps))
