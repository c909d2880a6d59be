"""``make bench-scale``: manifests, and all else that one process does for many simulated ranks.

The month takes as long as the rest, and so has a process of its own. Only CPU time is compared.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.bench import growth_of_drivers, growth_of_saves, month, scale


def main() -> bool:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        of_month = pool.submit(month.measured)
        are_met = [scale.main(), growth_of_saves.main(), growth_of_drivers.main()]
        lines, is_met = of_month.result()
    print("\n".join(lines))
    return all([*are_met, is_met])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
