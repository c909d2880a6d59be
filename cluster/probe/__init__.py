"""What one node can tell of itself: each function measures one thing, bounded in time.

``node`` puts the ``node_facts`` together out of ``host`` (versions, disk, memory) and ``device`` (products,
copies); ``links`` measures all-reduce between processes, each in one ``link_seat``, after their ``meeting``.
"""
