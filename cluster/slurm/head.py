"""Starts the head of a Slurm job's own Ray, as ``python -m cluster.slurm.head FOLDER PEER``, and becomes it.

The head has no devices, so that the driver has a node which no training uses. All ports are the kernel's
choice, and all files lie below FOLDER: two jobs on one node never meet. PEER is another node of the job, or
this one; it decides which network is used.
"""

import os
import sys
import sysconfig

from cluster.local_ray.timeouts import ACROSS_HOSTS, where_unset
from cluster.signals import become_deaf
from cluster.slurm.addresses import address_towards, free_port

# Results never use the object store, and /dev/shm is often small.
OBJECT_STORE_BYTES = 128 * 2**20
OF_ALL_NODES = (
    # Ray's defaults are fixed ports and ranges, which the next job on the node has too.
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--dashboard-agent-listen-port=0",
    f"--object-store-memory={OBJECT_STORE_BYTES}",
    "--disable-usage-stats",
    "--log-color=false",
)


def own_scripts_first(path: str) -> str:
    """Returns ``path`` with the folder of this Python's ``ray`` before all else. An image that is run by the
    name of its Python need not have that folder on PATH.
    """
    return f"{sysconfig.get_path('scripts')}:{path}"


def main(folder: str, peer: str) -> None:
    address = address_towards(peer)
    os.environ["PATH"] = own_scripts_first(os.environ["PATH"])
    os.environ.update(where_unset(ACROSS_HOSTS, os.environ))
    become_deaf(
        [
            "ray",
            "start",
            "--head",
            "--port=0",
            f"--node-ip-address={address}",
            # Ray refuses 0 here.
            f"--ray-client-server-port={free_port(address)}",
            *OF_ALL_NODES,
            "--num-cpus=0",
            "--num-gpus=0",
            "--include-dashboard=false",
            f"--temp-dir={folder}/ray",
            "--block",
        ]
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
