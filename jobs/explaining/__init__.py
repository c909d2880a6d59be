"""``longhaul explain WORD``: ``arguments`` (its flags), ``command`` (its story), ``entry`` (an explanation,
and how it is found), ``glossary`` (all of them); ``cells``, ``trainings``, ``findings``, ``answers`` and
``columns`` hold the texts.
"""
