"""Collects the fingerprint of this rank's node and process."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from cluster.fingerprint.libraries import loaded_libraries
from cluster.fingerprint.machine import device_place_facts, machine_facts
from cluster.probe import door, numa
from jobs.training.device.torch_settings import torch_facts
from reporting.results.redaction import without_credentials


def fingerprint_of(
    device: torch.device,
    settings: Mapping[str, str],
    variables: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> dict[str, str]:
    """Facts by name, the likelier causes of another speed first. ``settings`` are those that the device's
    driver tells; ``root`` is where the host's files are.
    """
    facts = {
        **settings,
        **torch_facts(device),
        **device_place_facts(door.address(device).pci, root),
        **({"NUMA binding": numa.bound()} if numa.bound() else {}),
        **loaded_libraries(root),
        **machine_facts(variables, root),
    }
    return {name: without_credentials(value) for name, value in facts.items()}
