"""A decision of the scheduler in words: what is answered, and why it was decided so."""

from __future__ import annotations

from kvstore.conductor.decision import Decision, Row
from kvstore.conductor.engines import Engine
from kvstore.conductor.scheduler import Scheduler
from kvstore.kernels.fleet import DOMAIN, FAR, LINK
from kvstore.kernels.prefill_price import (
    BLOCKS,
    COST,
    FETCHED,
    FIRST_TOKEN,
    HANDED,
    READ,
    READY,
    SOURCE,
    WAIT,
    WORK,
)
from kvstore.wire.v1 import conductor_pb2 as pb

_BY = {LINK: "", DOMAIN: " of its NVLink domain", FAR: " of another rack"}


def reply_of(scheduler: Scheduler, decision: Decision, approximate: bool) -> pb.ScheduleReply:
    """What is answered where nobody refused."""
    reply = pb.ScheduleReply(tpot_ms=1e3 * decision.step, approximate=approximate)
    if decision.decode is not None:
        reply.decode.CopyFrom(_place(decision.decode))
    if decision.prefill is None or decision.row is None:
        return reply
    row = decision.row
    reply.prefill.CopyFrom(_place(decision.prefill))
    blocks, fetched, read = int(row[BLOCKS]), int(row[FETCHED]), int(row[READ])
    reply.split.own_blocks, reply.split.there_blocks = decision.own, decision.there
    reply.split.read_blocks, reply.split.fetched_blocks = read, fetched
    coming = max(0, blocks - fetched - read - decision.own - decision.there)
    alone = max(0, blocks - decision.elsewhere)
    reply.split.coming_blocks = coming
    reply.split.shared_blocks = max(0, decision.own + coming - alone)
    reply.split.fetched_from = decision.source
    reused = 0 if decision.again else blocks * decision.prefill.facts.block_tokens
    reply.split.computed_tokens = max(1, decision.tokens - reused)
    reply.wait_ms = 1e3 * float(max(row[WAIT], row[READY]))
    reply.ttft_ms = 1e3 * float(decision.waited + row[HANDED])
    priority, reply.aging = scheduler.priority(decision)
    reply.priority_ms = 1e3 * priority
    left = decision.ttft - decision.waited - float(row[WORK])
    if left > 0.0:  # else it is late, and let in all the same, as where it is to be measured
        reply.drop_after_ms = max(1, min(round(1e3 * left), 1 << 31))
    return reply


def _considered(engine: Engine, row: Row, own: int, source: str) -> pb.ExplainReply.Considered:
    """One engine of those that were looked at."""
    return pb.ExplainReply.Considered(
        engine_id=engine.facts.engine_id,
        cost=row[COST],
        wait_ms=1e3 * row[WAIT],
        ready_ms=1e3 * row[READY],
        work_ms=1e3 * row[WORK],
        first_token_ms=1e3 * row[FIRST_TOKEN],
        reused_blocks=int(row[BLOCKS]),
        fetched_blocks=int(row[FETCHED]),
        read_blocks=int(row[READ]),
        error=engine.errors.mean.size,
        own_blocks=min(own, int(row[BLOCKS])),
        fetched_from=source,
    )


def _source(decision: Decision, row: Row) -> str:
    """The node that it fetches from, if any."""
    return decision.nodes[int(row[SOURCE])] if row[FETCHED] else ""


def sentence_of(decision: Decision) -> str:
    """Why the chosen engine won, or why nobody did."""
    if decision.refusal is not None:
        return str(decision.refusal)
    row, rows, engine, decode = decision.row, decision.rows, decision.prefill, decision.decode
    if row is None or rows is None or engine is None:
        assert decode is not None, "nobody was chosen, and nobody refused"
        step = 1e3 * decision.step
        return f"{decode.facts.engine_id} has room, and tokens come soonest there: in {step:.3g} ms"
    said = (
        f"{engine.facts.engine_id} gives the first token in {1e3 * row[FIRST_TOKEN]:.3g} ms: it "
        f"begins in {1e3 * max(row[WAIT], row[READY]):.3g} ms and reuses {row[BLOCKS]:.0f} of "
        f"{decision.blocks} blocks"
    )
    if decision.own:
        said += f", {decision.own} of them in its own memory"
    if row[FETCHED]:
        said += f", {row[FETCHED]:.0f} of them fetched from {decision.source}{_BY[decision.way]}"
    if row[READ]:
        said += f", {row[READ]:.0f} of them read from SSD"
    after = 1e3 * float(row[HANDED] - row[FIRST_TOKEN])
    if decision.again:
        said += ", and is computed again where it is decoded, for the node of one of both is gone"
    elif after > 0:
        said += f", and is where it is decoded {after:.3g} ms after that"
    if decode is not None and decode is not engine:
        said += f"; {decode.facts.engine_id} decodes it, alone where it lacks little"
    others = [i for i, one in enumerate(decision.considered) if one is not engine]
    if not others:
        return said + "; no other engine was worth a look"
    other, name = rows[others[0]], decision.considered[others[0]].facts.engine_id
    apart = float(other[COST] - row[COST])
    if apart < 0:
        return said + f"; {name} costs less, and does not keep the target"
    if apart == 0:
        return said + f"; {name} is as good, and chance decided"
    later = 1e3 * float(other[HANDED] - row[HANDED])
    if later > 0:
        return said + f"; {name}, the next, takes {later:.3g} ms longer"
    return said + f"; {name} would be {-later:.3g} ms sooner, and cost others more than that"


def explain(scheduler: Scheduler, decision: Decision, approximate: bool) -> pb.ExplainReply:
    reply = pb.ExplainReply(sentence=sentence_of(decision))
    chosen = decision.prefill
    if chosen is not None and decision.row is not None:
        reply.considered.append(_considered(chosen, decision.row, decision.own, decision.source))
    if decision.rows is not None:
        rows = [tuple(row) for row in decision.rows.tolist()]
        sources = [_source(decision, row) for row in rows]
        all_of = zip(decision.considered, rows, decision.owns, sources, strict=True)
        reply.considered.extend(_considered(*one) for one in all_of if one[0] is not chosen)
    if decision.refusal is None:
        reply.plan.CopyFrom(reply_of(scheduler, decision, approximate))
    if chosen is not None:
        error = chosen.errors.mean
        reply.ttft_error, reply.ttft_bias = error.size, error.bias
    return reply


def _place(engine: Engine) -> pb.ScheduleReply.Place:
    facts = engine.facts
    return pb.ScheduleReply.Place(
        engine_id=facts.engine_id,
        address=facts.address,
        data_parallel_rank=facts.rank,
        node_id=facts.node_id,
    )
