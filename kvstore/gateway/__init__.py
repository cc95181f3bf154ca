"""The way into a pool's engines: one request in, its tokens out, whoever computes them."""
