"""``longhaul runs`` lists the runs and sweeps of a store, the newest first. It changes nothing there."""

import argparse
import json
import time

from jobs.commandline.exit_codes import EXIT_OK, OF_STORES, run_command
from jobs.commandline.output import printable
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.listing.names import find
from jobs.listing.reading import read
from jobs.listing.text import listed_text


def runs(args: argparse.Namespace) -> int:
    with waits_told("runs"):
        return run_command("runs", lambda: _runs(args), OF_STORES)


def _runs(args: argparse.Namespace) -> int:
    store = open_to_read(args.store, args.wait)
    listed = read(store, find(store), time.time)
    if args.json:
        print(json.dumps(listed.as_data(store.url), indent=1))
    else:
        print(printable(listed_text(listed, store.url, args.last)))
    return EXIT_OK
