"""Published results are what others measured and wrote down, as a yardstick beside measured cells.

Reading order: ``table`` (reads ``results.csv``, which is made for other tools too), ``nearest`` (which of
them stands beside which cell, and what differs). They are never rows of ours, and in no statistic.
"""
