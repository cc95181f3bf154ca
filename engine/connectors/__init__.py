"""Moonpool inside other engines: each module plugs the client into one engine's own interface.

A connector imports its engine and `kvstore.client`, nothing else of the product.
"""
