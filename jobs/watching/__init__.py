"""``longhaul watch``: a run or a sweep while it goes on, as a page, in a terminal, or as JSON.

Only the store is read, and nothing is written. Reading order:

- ``arguments``, ``command``, ``choosing`` (which run or sweep is meant);
- ``bounded_store`` (what is read of a store that anybody may write to), ``runs`` and ``sweeps`` (what is
  known of each), ``following`` (one reader for all who look), ``snapshot`` (all of that at one moment);
- ``page``, ``terminal`` and ``prometheus`` (how it is shown), ``server`` and ``access`` (who gets the page).
"""
