"""Importers read results of other tools as rows of the same table.

Reading order: ``mapping`` (which header or tag means which column; the data is ``mapping.toml``),
``quantities`` (numbers with units), ``contents`` (what a file gave), ``grids`` (a sheet of cells) with its
``spreadsheets`` and ``separated`` (CSV), ``documents`` (JSON), ``series`` (one run, step by step) with its
``events`` (TensorBoard), ``sources`` (which files there are), ``trust`` (which of the old numbers can be
believed), ``reading`` (all files of one import).
"""
