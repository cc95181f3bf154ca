"""Makes a report of what was seen. Pure, save for the file that says how long prompts were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvstore.attach import gain as gains
from kvstore.attach.asked import Asked
from kvstore.attach.compared import Before
from kvstore.attach.gain import Gain
from kvstore.attach.lengths import fitting
from kvstore.attach.pool import Size
from kvstore.attach.reasons import Reasons, explain
from kvstore.attach.report import Report, Server
from kvstore.attach.watch import Watch
from kvstore.core.cost import TransferCost

SSD = TransferCost(1e-4, 6e9)  # a read; an NVMe drive's data sheet, PCIe 4


def so_far(watch: Watch) -> tuple[Asked, Reasons]:
    """What was asked of all servers, and why it was not there."""
    tokens, every = watch.fleet.blocks.block_tokens, [one.asked for one in watch.counted]
    both = zip(every, watch.fleet.seen, strict=True)
    return Asked.of_all(every), Reasons.of_all(explain(*one, tokens) for one in both)


def answer(
    watch: Watch,
    lengths: Sequence[int] | None,
    size: Size | None,
    link: TransferCost,
    before: Before | None = None,
) -> Report:
    """`lengths` count where they are those of the prompts that were asked for."""
    fleet, tokens = watch.fleet, watch.fleet.blocks.block_tokens
    servers = []
    for at, engine in enumerate(watch.engines):
        asked, seen = watch.counted[at].asked, fleet.seen[at]
        why = explain(asked, seen, tokens)
        servers.append(Server(engine.url, asked, why, seen.losses, watch.counted[at].restarts))
    asked = Asked.of_all(one.asked for one in servers)
    exact = lengths is not None and fitting(lengths, asked.queries)
    if exact:
        reasons = explain(asked, fleet.all_seen, tokens, lengths)
    else:
        reasons = Reasons.of_all(one.reasons for one in servers)
    found, token_seconds = None, watch.prefill.per_token
    if size is not None:
        found = gains.gain(
            *gains.replay(fleet, size),
            size.token,
            token_seconds,
            link,
            SSD,
        )
    return Report(
        watch.seconds,
        tokens,
        gains.pool_block_tokens(tokens) if tokens else 0,
        servers,
        asked,
        reasons,
        exact,
        size,
        found,
        before.compared(asked) if before is not None else None,
        [*_notes(watch, lengths, asked, exact), *_worth(found, token_seconds)],
    )


def _worth(found: Gain | None, token_seconds: Sequence[float]) -> Iterator[str]:
    """Why tokens that the pool would have had are told to save no second."""
    if found is None or not found.tokens:
        return
    if not any(token_seconds):
        yield "the servers told of no prefill's seconds: what a token saves is not known, and not 0"
    elif not found.fetched_bytes:
        yield (
            "over this link no prompt's blocks come sooner than they are computed: a pool would be"
            " asked for none of them"
        )


def _notes(watch: Watch, lengths: Sequence[int] | None, asked: Asked, exact: bool) -> Iterator[str]:
    fleet = watch.fleet
    if not asked.queries:
        yield "nothing was asked of these servers in that time"
    elif not fleet.blocks.block_tokens:
        yield "no event came: is kv= what --kv-events-config says?"
    if lengths is not None and not exact:
        yield (
            f"the prompts in the file have {sum(lengths):,} tokens, the servers were asked for"
            f" {asked.queries:,}: it is of other requests, and was not used"
        )
    if losses := sum(one.losses for one in fleet.seen):
        yield (
            f"events were lost {losses} times: blocks that were there count as if they were not;"
            " with replay= fewer are"
        )
    if restarts := sum(one.restarts for one in watch.counted):
        yield f"servers started anew {restarts} times"
    if watch.failed:
        yield f"servers did not answer {watch.failed} times when they were asked for their counters"
    if running := watch.running_first + sum(watch.running):
        yield (
            f"{running} requests were under way when the time began or ended: of those events and"
            " counters tell different parts"
        )
    for why, count in {**watch.passed_over, **fleet.blocks.left_out}.items():
        yield f"{count:,} events or blocks were passed over: {why}"
    if asked.preempted:
        yield f"{asked.preempted} requests were preempted, and are not counted when they resume"
    if fleet.unrecorded:
        yield f"{fleet.unrecorded:,} steps were too many for the replay of the pool"
