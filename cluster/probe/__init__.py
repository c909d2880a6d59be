"""Measures one node: each function measures one thing within a time limit.

``node`` collects the ``node_facts`` from ``host`` (versions, disk, memory) and ``device`` (matrix products,
copies). ``links`` measures all-reduce between processes. Each process has one ``link_seat``, and they join
in a ``meeting`` behind a gate: ``interfaces`` says by which address, and ``roll_call`` who came and who
reaches whom, by words in a ``signed_store``, and ``broken_ways`` whom to do without. Then torch connects
them, over gloo by a ``gloo_store``.
The ``door`` to torch's devices is here for trainings too, and ``numa``, which binds a rank near its device.

``kernels`` computes known kernels, and has what healthy devices computed.
``versions`` says which versions of its libraries Longhaul works with.
"""
