"""What a process loads to read what another one has pickled."""

import io
import pickle
from typing import Any


def packages_read(told: object) -> set[str]:
    """The packages that a process imports to read ``told``, after another one has pickled it."""
    reader = _Reader(io.BytesIO(pickle.dumps(told)))
    reader.load()
    return {module.partition(".")[0] for module in reader.modules}


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)
