"""What happens inside a worker. Its core does not know Ray, nor anything of a sweep.

Reading order: ``job`` (what is asked) and its learning rate's ``schedules``, ``context`` (where a rank
stands), ``measurement`` (what it tells), ``benchmark`` (one run as a page) with ``step``, ``timing``,
``feed`` and ``data``, ``precision``, ``devices``, their ``identities`` and ``looking`` (what they tell),
``environment`` and ``host_memory``; ``models`` and ``strategies``; ``randomness`` (what a rank would draw
next); ``failures`` and ``remains`` (what is learnt when it goes wrong); ``worker``, ``watch`` and ``hearing``
(a rank under Ray).

A long run: ``task`` (what is asked), ``long_run`` (one attempt as a page): a ``roll_call``, then step by step
along its ``course``, with what is done at the ``border`` after each, ``evaluating`` too, and the ``ending``.
The ``events`` of its ``telling`` and its ``recording``; ``samples`` in the order of a ``stream``, ``windows``
of the ``shards`` that a ``token_index`` names, ``near_shards`` of them on a node's disk, and ``id_columns``
of Parquet, by ``readers``; ``control`` (what all ranks agree on at each step, and the ``wishes`` that they
follow), ``guarding`` against ``spikes`` and ``skipping`` what caused them, ``saving``, ``restoring``, or
``foreign`` weights to begin with, and the ``mailbox`` between ranks. ``pace`` is how fast each of them is by
itself.
"""
