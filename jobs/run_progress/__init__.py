"""What a driver knows of its run, and where it reports it.

Reading order: ``run_state``, ``run_view`` (for people and programs), ``status_file`` (in the store),
``incident_outbox`` (what must reach the store, however long the store is away), ``sweep_driver`` (which start
of a sweep is at work), ``sweep_progress`` (how far it is).
"""
