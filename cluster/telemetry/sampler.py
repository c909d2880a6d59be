"""Reads the telemetry of one device in its own thread, so the training never waits for a driver.

``telemetry_of`` finds the device by its identity and returns ``Nothing`` if it has no telemetry.
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
# Limit for one window: some hours of looks. A longer window returns none.
_MOST_LOOKS = 20_000
# A driver that answers later than this is not waited for. AMD SMI's slowest answer takes a tenth of it.
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
    """Opens AMD SMI, which comes with ROCm, not from a package index. A broken one may raise anything on
    import.
    """
    try:
        import amdsmi

        amdsmi.amdsmi_init()
    except Exception as error:
        return Nothing(reason=f"AMD SMI can't be opened: {error}")
    return open_amd_smi(amdsmi, address)


class Sampler:
    """Looks at a device every ``every_s``. Its answers come from memory; if the driver hangs, they are
    empty.

    ``begin`` and ``end`` each take one more look and wait at most ``patience_s`` for it.
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
        self._settings: dict[str, str] = {}
        self._window: list[DeviceLook] | None = None
        self._began_s = 0.0
        self._num_begun = self._num_done = 0
        self._looked = threading.Condition()
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)

    def start(self) -> None:
        """Starts the thread, unless there is no telemetry."""
        if not isinstance(self._telemetry, Nothing):
            self._thread.start()

    def close(self) -> None:
        """Waits at most ``patience_s`` for the thread. If the driver hangs, the thread ends with the
        process.
        """
        self._is_closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._patience_s)

    def newest(self) -> Reading:
        """Returns the last reading, which is at most some seconds old; empty if there is none."""
        newest = self._newest
        if newest is None or self._clock() - newest.at_s > _STALE_S:
            return Reading()
        return newest.reading

    def settings(self) -> dict[str, str]:
        """Returns the device's settings, which the thread has read first; empty if the driver hangs."""
        return self._settings

    def begin(self) -> None:
        self._window, self._began_s = [], self._clock()
        self._look_now()

    def end(self) -> tuple[DeviceLook, ...]:
        """Returns the looks since ``begin``, the first from before and the last from after the measured
        work.

        Returns none if the driver did not answer in time for that.
        """
        is_whole = self._look_now()
        looks, self._window = self._window or [], None
        if not is_whole or len(looks) >= _MOST_LOOKS:
            return ()
        # A look that was in progress when the window began has asked the driver too early.
        return tuple(look for look in looks if look.at_s >= self._began_s)

    def _look_now(self) -> bool:
        if not self._thread.is_alive():
            return False
        with self._looked:
            wanted = self._num_begun + 1
            self._wake.set()
            return self._looked.wait_for(lambda: self._num_done >= wanted, self._patience_s)

    def _work(self) -> None:
        self._settings = self._telemetry.settings()
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
