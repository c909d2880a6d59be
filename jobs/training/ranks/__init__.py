"""Ranks and what they tell each other.

``gathering`` sends JSON in tensors, never a pickle; ``typed_json`` encodes it; ``this_rank`` says which rank
this process is where the user's own launcher has started it.
"""
