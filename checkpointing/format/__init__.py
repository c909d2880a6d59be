"""What a generation consists of, and how its bytes come back.

Reading order: ``manifest`` (names, shapes, places), ``digests`` (how damage is noticed), ``reshard`` (who
needs which bytes), ``loading``.
"""
