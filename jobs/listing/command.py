"""``longhaul runs`` lists the runs and sweeps of a store, the newest first. It changes nothing there."""

import argparse
import json
import time

from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_OK, OF_STORES, run_command
from jobs.commandline.output import printable
from jobs.commandline.store_location import store_base
from jobs.listing.names import find
from jobs.listing.reading import read
from jobs.listing.text import listed_text


def runs(args: argparse.Namespace) -> int:
    return run_command("runs", lambda: _runs(args), OF_STORES)


def _runs(args: argparse.Namespace) -> int:
    store = open_store(args.store, base=store_base())
    listed = read(store, find(store), time.time)
    if args.json:
        print(json.dumps(listed.as_data(store.url), indent=1))
    else:
        print(printable(listed_text(listed, store.url, args.last)))
    return EXIT_OK
