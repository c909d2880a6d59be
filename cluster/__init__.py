"""WHERE: what machines there are, and which run goes where. Knows nothing of training.

Reading order: ``inventory`` (the words), ``accelerators`` (what is known of chips), ``placement`` (what
fits where), ``environment`` (what each vendor's workers need); then where an inventory comes from:
``machine`` (this one), ``config`` (a cluster file), ``live`` (a running Ray); and ``local``, a private
Ray, which its ``guardian`` ends if nobody else does. ``variables`` sets some for a while.
"""
