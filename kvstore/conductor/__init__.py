"""The conductor: it follows every node's directory and answers for the whole pool.

It keeps nothing: what it knows it was told by those who hold the blocks, so one that starts anew
knows all again after a snapshot of each node, and several run side by side without knowing of each
other. Start reading at pool.py.
"""
