"""Moonpool inside other engines: each module plugs the client into one engine's own interface.

A connector imports its engine and `kvstore.client`, nothing else of the product. Two that run in
one engine share what names its KV (`vllm_name.py`), for that must not depend on who asks.
"""
