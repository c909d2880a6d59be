"""Keeps strangers from the ports where ranks meet.

``packet_filter`` has the kernel drop what strangers send; ``gate`` finds out who is none.
"""
