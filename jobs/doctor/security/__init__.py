"""``longhaul doctor --security`` looks at this machine as an attacker would: a line for each finding.

Reading order:

- ``exposure`` (all observations, as data), ``checks`` (what is wrong with them; pure);
- ``listening``: which of our processes listen where, and whether they ask for a token;
- ``closed_folders``: who may write to what we believe by its name;
- ``loose_secrets``: secrets that others can read in files and on command lines;
- ``bucket_trial``: tries with marked objects what a store should not allow;
- ``command``: asks all of them and prints.
"""
