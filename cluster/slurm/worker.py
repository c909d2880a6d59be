"""Joins this node to a Slurm job's Ray, as ``python -m cluster.slurm.worker FOLDER``, and becomes
``start_worker.sh``, which finds the vendor, labels the node and starts Ray again whenever it ends.

``LONGHAUL_HEAD`` and what else ``start_worker.sh`` reads is in the environment.
"""

import os
import sys
from pathlib import Path

from cluster.signals import become_deaf
from cluster.slurm.addresses import address_towards
from cluster.slurm.head import OBJECT_STORE_BYTES, OF_ALL_NODES, own_scripts_first

_SCRIPT = Path(__file__).resolve().parents[1] / "start_worker.sh"
_MEBIBYTE = 2**20
# The rest is for the driver, the page cache and Ray itself.
_SHARE_OF_MEMORY = 0.7


def main(folder: str) -> None:
    head, _, _ = os.environ["LONGHAUL_HEAD"].rpartition(":")
    os.environ["LONGHAUL_TEMP"] = folder
    os.environ["PATH"] = own_scripts_first(os.environ["PATH"])
    become_deaf(
        [
            "bash",
            str(_SCRIPT),
            f"--node-ip-address={address_towards(head.strip('[]'))}",
            *(f"--node-name={name}" for name in filter(None, [os.environ.get("SLURMD_NODENAME")])),
            *OF_ALL_NODES,
            *share_of_the_node(os.environ),
        ]
    )


def share_of_the_node(variables: "os._Environ[str] | dict[str, str]") -> list[str]:
    """Returns the options by which Ray takes what Slurm gave the job on this node, and not the whole node.

    The devices need no option: Slurm hides those of other jobs.
    """
    num_cpus, memory = variables.get("SLURM_CPUS_ON_NODE", ""), variables.get("SLURM_MEM_PER_NODE", "")
    options = [f"--num-cpus={num_cpus}"] if num_cpus.isdecimal() else []
    if memory.isdecimal() and int(memory):
        share = int(int(memory) * _MEBIBYTE * _SHARE_OF_MEMORY) - OBJECT_STORE_BYTES
        options += [f"--memory={share}"] if share > 0 else []
    return options


if __name__ == "__main__":
    main(sys.argv[1])
