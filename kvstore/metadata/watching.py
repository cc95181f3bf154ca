"""What changes below a prefix, for some minutes: then whoever goes by it reads all anew.

A store that lost its data, or was restored, and whose new history is longer than what was seen of
the old one cannot be told from one that went on: it tells all that comes, and not what else is
there now, or is there no more. So nobody goes by changes alone for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

from kvstore.metadata.protocol import Change, Metadata

# By chance, so that not all ask in one moment. Each of N nodes then reads N records, some 400 bytes
# each: of a thousand nodes the store is asked 2 MB a second.
WATCHED_SECONDS = (120.0, 300.0)


@asynccontextmanager
async def watching(
    metadata: Metadata, prefix: str, revision: int, dice: random.Random
) -> AsyncIterator[AsyncGenerator[Change, None]]:
    """Inside it are the changes after a revision; it is left when it is time to read all anew."""
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(dice.uniform(*WATCHED_SECONDS)),
            aclosing(metadata.watch(prefix, revision)) as changes,
        ):
            yield changes
