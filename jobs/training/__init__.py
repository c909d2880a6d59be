"""What happens inside a worker. Its core knows neither Ray nor the driver.

``task`` (what is asked, as plain data without torch); ``benchmark`` (a cell) and ``loop`` (an attempt of a
long run), each a page over ``step``; ``state`` (saving and going on), ``strategies``, ``models``,
``precision``, ``data``, ``device``, ``health`` (what is learnt when it goes wrong), ``ranks`` (what they
tell each other). ``preload`` loads it all ahead of time.
"""
