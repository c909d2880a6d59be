"""What is learnt when a training goes wrong: ``failures``, ``problems`` (errors that ranks tell each other),
``postmortem`` (of a process that is gone), ``loss_guard`` (of a loss), ``rank_speed``.
"""
