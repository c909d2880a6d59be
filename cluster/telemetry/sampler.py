"""The telemetry of one device, read from a thread of its own: whoever trains never waits for a driver.

``telemetry_of`` finds the device by its identity and answers ``Nothing`` where there is none to be had.
"""

import threading
import time
from collections.abc import Callable
from typing import Literal

from cluster.telemetry.amd_smi import open_amd_smi
from cluster.telemetry.nvml import open_nvml
from cluster.telemetry.readings import DeviceAddress, Nothing, Reading, Telemetry
from cluster.telemetry.summary import DeviceLook

EVERY_S = 0.5
# Of a window: some hours of looks. A longer one is told of without any.
_MOST_LOOKS = 20_000
# A driver that answers later than this is not waited for. (AMD SMI's slowest answer takes a tenth of it.)
PATIENCE_S = 1.0
_STALE_S = 5.0


def telemetry_of(platform: Literal["cpu", "cuda", "rocm"], address: DeviceAddress) -> Telemetry:
    if platform == "cpu":
        return Nothing(reason="a CPU has no telemetry of its own")
    return _of_nvidia(address) if platform == "cuda" else _of_amd(address)


def _of_nvidia(address: DeviceAddress) -> Telemetry:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        return Nothing(reason=f"NVML can't be opened: {error}")
    return open_nvml(pynvml, address)


def _of_amd(address: DeviceAddress) -> Telemetry:
    """AMD SMI comes with ROCm, not from a package index; a broken one may raise anything on import."""
    try:
        import amdsmi

        amdsmi.amdsmi_init()
    except Exception as error:
        return Nothing(reason=f"AMD SMI can't be opened: {error}")
    return open_amd_smi(amdsmi, address)


class Sampler:
    """Looks at a device every ``every_s``. All it tells is at hand: a driver that hangs makes it silent.

    ``begin`` and ``end`` each look once more and wait for that, ``patience_s`` at most.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        *,
        every_s: float = EVERY_S,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._telemetry = telemetry
        self._every_s = every_s
        self._patience_s = patience_s
        self._clock = clock
        self._newest: DeviceLook | None = None
        self._window: list[DeviceLook] | None = None
        self._began_s = 0.0
        self._num_begun = self._num_done = 0
        self._looked = threading.Condition()
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)

    def start(self) -> None:
        """Starts nothing where there is nothing to look at."""
        if not isinstance(self._telemetry, Nothing):
            self._thread.start()

    def close(self) -> None:
        """Doesn't wait for a driver that hangs; its thread ends with the process."""
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._patience_s)

    def newest(self) -> Reading:
        """The last look's, at most some seconds old; empty if there is none."""
        newest = self._newest
        if newest is None or self._clock() - newest.at_s > _STALE_S:
            return Reading()
        return newest.reading

    def begin(self) -> None:
        self._window, self._began_s = [], self._clock()
        self._look_now()

    def end(self) -> tuple[DeviceLook, ...]:
        """The looks since ``begin``, one of them before and one after what lies between the two calls;
        none if the driver didn't answer in time for that.
        """
        is_whole = self._look_now()
        looks, self._window = self._window or [], None
        if not is_whole or len(looks) >= _MOST_LOOKS:
            return ()
        # One that was going on when the window began asked the driver too early.
        return tuple(look for look in looks if look.at_s >= self._began_s)

    def _look_now(self) -> bool:
        if not self._thread.is_alive():
            return False
        with self._looked:
            wanted = self._num_begun + 1
            self._wake.set()
            return self._looked.wait_for(lambda: self._num_done >= wanted, self._patience_s)

    def _work(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            self._look()
            self._wake.wait(self._every_s)

    def _look(self) -> None:
        with self._looked:
            self._num_begun += 1
        look = DeviceLook(at_s=self._clock(), reading=self._telemetry.read())
        window, self._newest = self._window, look
        if window is not None and len(window) < _MOST_LOOKS:
            window.append(look)
        with self._looked:
            self._num_done += 1
            self._looked.notify_all()
