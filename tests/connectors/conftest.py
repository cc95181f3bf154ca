"""Tests that need an engine are run by a target of their own, in an environment that has it."""

from importlib.util import find_spec

collect_ignore = [engine for engine in ("vllm", "sglang", "lmcache") if find_spec(engine) is None]
