"""Worker groups through Ray Train.

Reading order: ``cells`` (a sweep's sessions), ``attempts`` (one attempt of a long run); for both: ``fit`` (a
group's thread and its end), ``trainer`` (what we change about Ray Train), ``ray_errors`` (what Ray's
exceptions mean), ``train_internals`` (Ray Train's private names); ``driver_actors`` (what a driver keeps
between attempts), ``on_nodes`` (questions to workers' nodes),
``node_links`` (whom they reach), and ``link_rates`` with each host's ``link_end`` (how fast). On the rank's
side: ``worker``, its ``heartbeat``, its ``stop_listener``, and ``last_states`` (for when a peer is lost).
"""
