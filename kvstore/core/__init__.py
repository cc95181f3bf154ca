"""Decisions: pure, no I/O, no await, no clock, no dice. `kvstore.node` carries them out."""
