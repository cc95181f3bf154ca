"""What an engine says of its own KV cache, in the wire form that vLLM and SGLang share.

`messages` makes events of what was received, `subscription` receives all in order and without gaps,
and `translation` makes of them hashes of blocks as they are named here, which `own_cache` passes on
to conductors. Tokens stay on this host.
"""
