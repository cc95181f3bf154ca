"""Tensor arithmetic over raw memory: hashing and moving strips. It knows nothing of the store."""
