"""What files hold: each format's records, and where a file may be cut.

Reading order:

- ``naming`` (what a file's name says is in it);
- ``objects`` (the bytes of an object in a store, in ranges);
- ``unpacked`` (the bytes of a file, also of a compressed one, within bounds);
- ``lines`` (text and JSON in lines), ``json_array``, ``csv_rows``, ``columns`` (Parquet and Arrow);
- ``groups`` (records side by side, as many as are cut off together).
"""
