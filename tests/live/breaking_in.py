"""Breaks training code in processes that a test starts through others: by a ``sitecustomize.py``."""

from pathlib import Path

_FINDER = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "jobs.training.loop.attempt":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def run(module):
            execute(module)
            break_in(module)
        spec.loader.exec_module = run
        return spec

sys.meta_path.insert(0, Finder())
"""


def break_in(folder: Path, program: str) -> None:
    """``program`` has a function ``break_in``. It gets the module of attempts as soon as a process with
    ``folder`` in its PYTHONPATH has loaded it.
    """
    (folder / "sitecustomize.py").write_text(_FINDER + program, encoding="utf-8")
