"""Hides all devices from a process that imports this module. Import it before DeepSpeed, which chooses its
kind of device as it loads.
"""

import os

from tests.live.ranks import ON_CPU

os.environ |= ON_CPU
