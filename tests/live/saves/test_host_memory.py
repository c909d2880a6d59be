"""Host memory for a device: registered as large as it is, and forgotten by the driver before it goes back."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from checkpointing.saving.snapshot import host_memory

NUM_BYTES = 5 * 2**20 + 4096
HOST, DEVICE = torch.device("cpu"), torch.device("cuda", 0)


class Runtime:
    """CUDA's runtime as torch gives it, without a device: what was registered and is still there."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, error: int = 0) -> None:
        self.held: dict[int, int] = {}
        self._error = error

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if not self._error:
            self.held[address] = num_bytes
        return self._error

    def cudaHostUnregister(self, address: int) -> int:
        assert _is_mapped(address), "it went back to the system first"
        del self.held[address]
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return "out of memory"


def _is_mapped(address: int) -> bool:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    borders = [[int(word, 16) for word in line.split()[0].split("-")] for line in maps]
    return any(start <= address < end for start, end in borders)


def having(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Runtime:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def test_memory_for_a_device_is_registered_as_large_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = having(monkeypatch, Runtime())
    memory = host_memory(NUM_BYTES, DEVICE)
    assert runtime.held == {memory.data_ptr(): NUM_BYTES}
    assert not memory.any()


def test_it_lives_as_long_as_any_view_and_then_the_driver_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = having(monkeypatch, Runtime())
    memory = host_memory(NUM_BYTES, DEVICE)
    view = memory[4096:].view(torch.float32)
    del memory
    assert len(runtime.held) == 1
    assert view.add_(1).sum() == view.numel()
    del view
    assert not runtime.held


def test_without_room_for_it_the_driver_s_words_and_the_remedy_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = having(monkeypatch, Runtime(error=2))
    with pytest.raises(RuntimeError, match=r"CUDA error: out of memory: 5,246,976 bytes .* `ulimit -l`"):
        host_memory(NUM_BYTES, DEVICE)
    assert not runtime.held


@pytest.mark.parametrize(("num_bytes", "device"), [(NUM_BYTES, HOST), (0, DEVICE)])
def test_memory_for_no_device_and_none_at_all_need_no_driver(
    num_bytes: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = having(monkeypatch, Runtime())
    memory = host_memory(num_bytes, device)
    assert memory.nbytes == num_bytes and not memory.any() and not runtime.held
