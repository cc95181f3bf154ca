"""The same moves on a GPU, in Triton: what `kernels.strips` does where pages and slots are in HBM.

`pages` moves bytes of any width, `strips` moves and hashes them in one pass, or codes them;
`attention` reads pages where they lie; `reference` says in a few lines of torch what each must do.
In how many warps and pieces each is launched, `launch` leaves to a few choices, of which `tuned`
knows the device's own, once `python -m bench tune --write` has put it into `launches.json`.
By them KV goes between HBM and the host: `straight`, to and from slots of memory that the device
knows (`registered`), or in slot order through pinned memory (`staging`), one `turn` at a time,
which kernels are told of without waiting for it (`upload`), in copies of many runs (`rectangles`),
and of which the host hears without holding up who tells the device of more (`fetch`); and
within HBM, to and from slots there (`resident`), which one process takes and others open
(`exported`), and from which bytes go `downward`; or to and from an `area` that a network device
reaches.
Triton's interpreter runs them on a CPU, for tests, and each of their loads and stores is checked
there to be inside of what its kernel was told of. `make sanitize` has NVIDIA's memcheck do so on a
GPU.
"""
