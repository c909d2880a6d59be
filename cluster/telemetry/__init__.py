"""What a device tells of itself while it works.

Reading order: ``readings`` (one look), ``nvml`` and ``amd_smi`` (whom to ask), ``sampler`` (a thread that
looks), ``summary`` (what the looks at a window say together).
"""
