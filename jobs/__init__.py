"""WHAT: the stories. The only room that knows the other three.

Reading order: ``sweep`` (the entry) and ``cli``, whose ``arguments`` lead to ``sweeping``, the story as
a page. It reads a ``spec`` (``spec_file`` is what all specs share, ``errors`` say what is wrong with one,
``places`` where its store starts), makes its ``grid`` of cells, a ``plan`` of each with its predicted
``memory``, ``queues`` of ``sessions``, and hands them to one of the ``executors``: ``ray_executor`` (by
``launch``: ``claims``, a ``board``, the ``group_life`` with its ``progress``, ``troubles`` and ``losses``) or
``inline_executor`` (by ``inline``: this process, and its peers under ``torchrun``). The ``bookkeeper`` turns
what they tell into rows (``record``, ``power``, ``metrics``, ``source``) among the ``results`` in the store
and shows them on the ``display``; at the end ``scoreboard``, ``tables`` and ``node_history`` say how it went.
``training`` is what happens in a worker.

A long run: ``train`` (the entry), ``running`` (the story), its ``run_spec`` made of ``run_sections``, its
``run_display``; ``attempting`` (one attempt after another), what each is to do (``run_tasks``), and the
``attempt_life`` of its worker group. After a failed attempt, whose ``causes`` are read from its last words,
the rules of ``recovery`` decide by what is known of its ``past``, and ``restarts`` carry it out, by what is
``spoilt`` after a wrong loss; a ``keeper`` starts the driver itself again, which is one of ``drivers``.
``elastic`` says at which world size it goes on, ``resizing`` asks for it; ``status`` and ``inquiries`` say
how one is doing, ``checkpoints`` what it left to go on from. What a driver knows of it by ear:
``run_state``; what may be wrong with it: ``alarms``, which ring the ``bell``, by ``calling`` the user's
command. What it has to say of its attempts, while the store may be away: ``words``.

Before it starts ``continuity`` asks its store whether it may go on, by the rules of ``run_changes``.
After its last step comes ``finishing``.

What may never return is waited for by ``deadlines``. Every process of ours that a user starts ends by its
``entry``.

How a long run ends before its last step: ``wishers`` may wish it, ``stopping`` is how from elsewhere, and an
attempt's ``last_word`` says what became of it.

What a long run reads: ``tokens``, found and held against its spec; made by ``packing``, which Ray carries
out in ``pack``.

What came of it: ``report`` (the entry), ``reports`` (the story, and copies), with its ``report_arguments``.
``importing`` (older results beside ours). ``comparing`` (B against a baseline), told by ``verdicts``.

The cluster: ``clusters`` (what is there, and a mixed one on this machine for a command), with its
``cluster_arguments`` and ``cluster_tables``.

Whether nodes, links, store and space will do: ``doctor``.
"""
