"""What the model says of the tokens that a step yields, from the logits that took them.

Of sequences whose callers do not ask nothing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvstore.logprobs import Logprobs

from .device import Fetch


def logprobs_of(
    logits: torch.Tensor, tokens: torch.Tensor, wanted: Sequence[int | None], fetch: Fetch
) -> list[Logprobs | None]:
    """Of each row of `logits` (rows, vocab) and the token taken there, `tokens` int64 (rows,):
    `wanted` says how many of the likeliest are told of beside it, None that nothing is; `fetch` is
    the device's.

    In float32, whatever the model's dtype, as vLLM computes its raw logprobs.
    """
    rows = [row for row, count in enumerate(wanted) if count is not None]
    found: list[Logprobs | None] = [None] * len(wanted)
    if not rows:
        return found
    every = logits[rows].log_softmax(-1, dtype=torch.float32)
    most = max(count for count in wanted if count is not None)
    likeliest, ids = every.topk(min(most, every.shape[-1]))
    taken = every.gather(1, tokens[rows].unsqueeze(1)).squeeze(1)
    said = (fetch(one).tolist() for one in (taken, ids, likeliest))
    for row, logprob, top, values in zip(rows, *said, strict=True):
        found[row] = Logprobs(logprob, tuple(zip(top, values, strict=True))[: wanted[row]])
    return found
