"""Collects the fingerprint of this rank's node and process."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from cluster.fingerprint.libraries import loaded_libraries
from cluster.fingerprint.machine import device_place_facts, machine_facts
from cluster.telemetry.readings import DeviceAddress
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
        **device_place_facts(_place_of(device), root),
        **loaded_libraries(root),
        **machine_facts(variables, root),
    }
    return {name: without_credentials(value) for name, value in facts.items()}


def _place_of(device: torch.device) -> str | None:
    return None if device.type == "cpu" else DeviceAddress.of(torch.cuda.get_device_properties(device)).pci
