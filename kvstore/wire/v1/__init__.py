"""Stubs generated from `proto/` by `proto/generate.py`; never edited."""
