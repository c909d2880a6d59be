"""Where input comes from, other than files and folders of this machine.

Reading order:

- ``stored_inputs`` (objects of stores), ``patterns`` (which of them fit);
- ``standard_input`` (what is kept of it as a file);
- ``splits`` (which files of a downloaded data set are which split).
"""
