"""The storage daemon of one host: keeps blocks in shared memory and answers for them."""
