"""This package writes ``report.md``: ``report`` composes it, from ``costs``, ``published``, ``profiles`` and
the ``parts`` of GitHub's Markdown.
"""
