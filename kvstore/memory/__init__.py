"""This machine's memory: the shared arena, slot heads in it, and its bytes as strips."""
