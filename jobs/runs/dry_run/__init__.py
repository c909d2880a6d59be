"""``longhaul train --dry-run`` shows what a start would do, and neither starts nor writes anything: ``plan``
finds it out, ``text`` shows it.
"""
