"""The conductor: it follows every node's directory, hears every engine, answers for the whole pool.

It keeps nothing: what it knows it was told by those who hold the blocks and run the requests, so
one that starts anew knows all again after a snapshot of each node and a report of each engine, and
several run side by side without knowing of each other.

For who holds what start reading at pool.py. For where requests run at scheduler.py: it carries out
the choices of choices.py over the engines of engines.py, with what is on its way to them in
in_flight.py, both told by reports.py.
"""
