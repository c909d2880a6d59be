"""The executors of sessions and attempts. ``ray_train`` is the only place of this package that drives Ray.

Reading order: ``choose``; ``ray_executor`` over ``ray_train``, whose workers come out of a ``forkserver``;
``inline_executor`` over ``inline``, in this process or the ranks that ``torchrun`` started.
"""
