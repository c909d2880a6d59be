"""Sessions on worker groups, through Ray Train. Groups go side by side, a group's sessions one by one.

Each session is one ``fit()`` over all its jobs, in a thread of its own. Results don't travel through Ray
Train: workers post them on a board, from which the driver fetches a few times a second, so that a
result is there as soon as its run ends. After any job that is not ok the whole worker group is ended and
the remaining jobs go on in a new one, because the peers of a rank that failed may be stuck for good.
"""
