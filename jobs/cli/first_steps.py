"""What ``longhaul`` alone says: what to do first. Pure."""

FIRST_STEPS = """\
Longhaul measures and trains large models on Ray clusters that mix NVIDIA and AMD machines.

On this machine, with or without a GPU:
  longhaul init              look at this machine, and write the spec of a training that fits
  longhaul train FILE        run that training; the same command goes on where it ended
  longhaul sweep             measure a small sweep: a table of which strategy is faster
  longhaul report --open     make one page of everything measured, and show it

On a cluster:
  longhaul doctor            see if nodes, links and the store will do
  longhaul init --cluster cluster.yaml

Later:
  longhaul runs              list what a store holds, and how each run is doing
  longhaul explain WORD      say what a status, a finding, a column or an exit code means

`longhaul --help` lists all commands. `longhaul COMMAND --help` explains one.
"""
