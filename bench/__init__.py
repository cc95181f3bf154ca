"""What Moonpool costs and saves, measured against what the machine itself can do.

`python -m bench --help` lists the benches. Each one starts a real node, compares two ways of doing
the same work within one run, and says what it found as one line of JSON.
"""
