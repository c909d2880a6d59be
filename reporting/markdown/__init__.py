"""This package writes ``report.md``: ``report`` composes it, from ``profiles`` and from the ``parts`` of
GitHub's Markdown.
"""
