"""``longhaul completion`` prints a script that completes the command line in a shell: ``tree`` reads the
words from argparse's own parsers; ``bash``, ``zsh`` and ``fish`` write them down; ``command`` prints one.

A script holds all words, so that the Tab key starts no Python.
"""
