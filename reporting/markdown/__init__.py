"""This package writes ``report.md``: ``report`` composes it from the ``parts`` of GitHub's Markdown."""
