"""Attack 2, its second half: who can only connect tells ranks in another's name that a good save is corrupt.

They tell each other of saves through a store of torch's in rank 0. What it is told there quarantined saves.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from tests.security.attack import GotIn, NotTried, in_strangers_hands, product, wait_until
from tests.security.ray_run import RUN
from tests.security.rendezvous import launched

_WORD = "says nobody who was there"
# She tries each port of rank 0: where torch's own client gets no answer, there is no store of torch's.
_HERS = f"""
import pathlib, sys, threading, time
from datetime import timedelta
from torch.distributed import TCPStore
def write(port):
    patience = timedelta(seconds=9)
    client = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=patience)
    known, is_told = set(), False
    while True:
        names = client.list_keys()
        known.update(name.split("/")[-3] for name in names if name.endswith(("/written", "/read")))
        for generation in known:
            client.set(f"{{generation}}/1/read", "corrupt: {_WORD}")
        if known and not is_told:
            print("wrote into the mailbox", flush=True)
            is_told = True
        time.sleep(0.001)
tried = set()
while True:
    for port in set(pathlib.Path(sys.argv[1]).read_text().split()) - tried:
        tried.add(port)
        threading.Thread(target=write, args=(int(port),)).start()
    time.sleep(0.01)
"""


def attack(tree: Path) -> str:
    with product(tree) as its:
        second, hers = replace(its, home=its.home / "second"), in_strangers_hands(its)
        second.home.mkdir()
        spec, store, ports, ranks = its.home / "spec.yaml", its.home / "store", its.home / "ports", launched()
        run = RUN.replace("world_size: 1", "world_size: 2").replace("1000000", "20")
        # She overwrites what is waited for.
        spec.write_text(run.replace("every_steps: 2", "every_steps: 2, deadline_s: 10"), encoding="utf-8")
        ports.touch()
        train = ("train", spec, "--executor", "inline", "--no-retry", "--store", store)
        key = {"LONGHAUL_RUN_KEY": "k" * 64}
        with (
            its.running(*train, **key, **ranks[0]) as rank_0,
            second.running(*train, **key, **ranks[1]),
            hers.running(ports, program=("-c", _HERS)),
        ):

            def tell_ports() -> None:
                with suppress(psutil.Error):
                    ends = psutil.Process(rank_0.pid).net_connections("tcp")
                    found = {str(end.laddr.port) for end in ends if end.status == psutil.CONN_LISTEN}
                    new = ports.with_suffix(".new")
                    new.write_text(" ".join(found), encoding="utf-8")
                    new.rename(ports)

            wait_until(tell_ports, rank_0)
            wrote = "wrote into the mailbox" in hers.said()
        records = [path for path in store.glob("runs/m/log/*") if path.is_file()]
        if believed := [path for path in records if _WORD.encode() in path.read_bytes()]:
            raise GotIn(f"{len(believed)} records have what she told: good saves are quarantined")
        if not (wrote and rank_0.returncode == 0):
            raise NotTried(f"she reaches no mailbox: {hers.said()[-200:]} {its.said()[-200:]}")
        return f"none of {len(records)} records has what she told, and the run finished"
