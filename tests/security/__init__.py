"""Attacks on Longhaul, each a script that is told a tree, the folder of a checkout: ``make attacks``.

They know the product as strangers do, by its command line and files, so that they can be run on any version:
one that holds now got in before what it attacks was mended. As root they are two made users of this machine.

``attack`` is what all share, ``__main__`` runs them and prints a table. On files: ``units`` and
``rays_folder_of_files`` (with ``ray_stand_in``), ``bombs``, ``poisoned_objects``, ``link_in_store``,
``token_cache``. On ranks: ``rendezvous``, ``rank_mailbox``. On a Ray (``ray_run``): ``rays_folder``,
``variables``, ``ports``.
"""
