"""Functions that compiled code alone calls: a third less to compile than with a way in from Python.

What that way would take apart is wide: a fleet is a tuple of forty arrays. Without it a call from
Python ends the process, so `tests/kernels/test_inner.py` reads every file for one.
"""

from __future__ import annotations

from numba import njit

inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
