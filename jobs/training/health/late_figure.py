"""A number that a device has yet to compute. Whoever reads it waits for that number, not for later work."""

from torch import Tensor

from cluster.probe import door


class LateFigure:
    """Launches the number's copy to the host when made. ``float`` waits until the copy has landed. So does
    ``values``, of several numbers.

    On a CPU the number is there already. Any thread may read it.
    """

    def __init__(self, number: Tensor) -> None:
        is_there = number.device.type == "cpu"
        # torch takes pinned memory for a copy that does not block.
        self._number = number if is_there else number.to("cpu", non_blocking=True)
        self._landed = None if is_there else door.event(number.device)

    def __float__(self) -> float:
        return float(self._there())

    def values(self) -> list[float]:
        return [float(value) for value in self._there().flatten().tolist()]

    def _there(self) -> Tensor:
        if self._landed is not None:
            self._landed.synchronize()
        return self._number
