"""The reference engine: a small, real decoder that computes the KV the pool keeps.

It promises the tokens that `transformers` would give for the same folder, greedily, whatever part
of a prompt's KV came from elsewhere. It can because each step writes its K and V to pages before
attention reads them, so attention cannot tell computed from copied.
"""
