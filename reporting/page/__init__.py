"""The page is one self-contained HTML file that shows findings: it uses no network and no third-party code.

Reading order: ``markup`` (the only place where text becomes HTML), ``pieces`` (section, table, chip: what
sections are made of), ``pictures`` (charts), ``document`` (the page from top to bottom), then its
``sections``. ``style.css`` and ``tables.js`` go into the page
unchanged.
"""

from reporting.page.document import index_html

__all__ = ["index_html"]
