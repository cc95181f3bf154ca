"""What was purged stays purged: which of the blocks that a disk still names are gone for good.

A tombstone says up to and including which SSD generation everything of a namespace, or of a tenant,
is purged. Generations only rise, over restarts too, so what is put later is told from what was
there before by one comparison, whatever index or slot head is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tombstones:
    """Generations by namespace digest, and by tenant digest; none begins below 1."""

    namespaces: Mapping[bytes, int] = field(default_factory=dict)
    tenants: Mapping[bytes, int] = field(default_factory=dict)


def purged(
    tombstones: Tombstones,
    namespaces: Sequence[bytes],
    namespace: NDArray[np.int64],
    tenants: Sequence[bytes],
    tenant: NDArray[np.int64],
    generation: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Which of many blocks are purged: parallel arrays, a row for each. `namespace` and `tenant`
    number the digests."""
    by_namespace = [tombstones.namespaces.get(digest, 0) for digest in namespaces]
    by_tenant = [tombstones.tenants.get(digest, 0) for digest in tenants]
    last = np.maximum(
        np.array(by_namespace, np.uint64)[namespace], np.array(by_tenant, np.uint64)[tenant]
    )
    gone: NDArray[np.bool_] = generation <= last
    return gone
