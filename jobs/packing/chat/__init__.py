"""Chat data: conversations become rows of tokens that know which words are an assistant's.

Reading order:

- ``options`` (what a user asks for), ``recipe`` (what all workers are told);
- ``conversations`` (checks the messages of a row);
- ``template_file`` (finds the chat template), ``sandbox`` (runs it within bounds), ``bounding``
  (counts what it does);
- ``masks`` (which tokens are an assistant's), ``spans`` (which characters);
- ``rows`` (lays conversations into rows), ``piece`` (packs one piece).
"""
