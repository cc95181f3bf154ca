"""SGLang on Moonpool: a HiCache storage backend, loaded by SGLang's own `dynamic` backend.

The engine hands over its page hashes and the addresses of its host pool; pages become blocks that
stand alone under those keys. See deploy/guide/sglang.md for the flags and what is not supported.

    settings.py   what a user may set, checked key by key
    facts.py      the namespace, from what SGLang resolved; what is refused, by name
    told.py       what a server was told that changes its KV, beside which weights it has
    kernels.py    which kernels round inputs, where weights have few bits
    pages.py      where every byte of a page lies in a host pool, layout by layout
    storage.py    the backend itself
    hooks.py      what the scheduler does, told to who watches it
    telling.py    what conductors are told of that
    fleet.py      this engine as conductors know it
"""

from .storage import MoonpoolStorage

__all__ = ["MoonpoolStorage"]
