"""Moonpool: a KV-cache-centric tiered storage service for LLM inference."""
