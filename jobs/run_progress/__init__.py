"""What a driver knows of its run, and whom it tells.

Reading order: ``run_state``, ``run_view`` (for people and programs), ``status_file`` (in the store),
``incident_outbox`` (what is to reach the store however long it is away).
"""
