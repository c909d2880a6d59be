"""Attack 2: somebody who can only connect takes rank 1's seat and sends a pickle, which rank 0 runs.

She has all of the product's code, in which she exchanges what her rank tells the others. What she lacks is
the key that the owner gives to ranks (``LONGHAUL_RUN_KEY``). Earlier versions knew no key.
"""

import socket
from pathlib import Path

from tests.security.attack import GotIn, NotTried, in_strangers_hands, product, wait_until
from tests.security.ray_run import RUN

_HERS = """
import runpy, sys
from torch.distributed import distributed_c10d
what = f"open({sys.argv[1]!r}, 'w')"
class Evil:
    def __reduce__(self):
        return exec, (what,)
sent = distributed_c10d._object_to_tensor
distributed_c10d._object_to_tensor = lambda told, *rest: sent(Evil(), *rest)
sys.argv[:] = ["longhaul", *sys.argv[2:]]
runpy.run_module("jobs.cli", run_name="__main__")
"""


def attack(tree: Path) -> str:
    with product(tree) as its:
        hers, run_by_her = in_strangers_hands(its), its.home / "run-by-her"
        spec, ranks = its.home / "spec.yaml", launched()
        spec.write_text(RUN.replace("world_size: 1", "world_size: 2"), encoding="utf-8")
        train = ("train", spec, "--executor", "inline", "--no-retry", "--store")
        with (
            its.running(*train, its.home / "store", LONGHAUL_RUN_KEY="k" * 64, **ranks[0]) as rank_0,
            hers.running(run_by_her, *train, hers.home / "store", program=("-c", _HERS), **ranks[1]),
        ):
            wait_until(run_by_her.exists, rank_0)
            if run_by_her.exists():
                raise GotIn("rank 0 ran what the process in rank 1's seat sent as a pickle")
            said = its.said()
        told = [line for line in said.splitlines() if "another process sits in this place" in line]
        told += [line for line in said.splitlines() if "somebody else writes to the rendezvous" in line]
        if rank_0.returncode in (0, None) or not told:
            raise NotTried(f"nobody came as far as rank 1's seat: {said[-300:]}")
        return f"nothing of hers runs: {told[-1].strip()}"


def launched() -> tuple[dict[str, str], dict[str, str]]:
    """What ``torchrun`` tells two ranks of one machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    first, second = ({**common, "RANK": rank, "LOCAL_RANK": rank} for rank in "01")
    return first, second
