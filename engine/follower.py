"""A rank that is not the first: it does what rank 0 tells it, and what all do in every step.

It has its own part of the model, its own pages and its own client of the pool; it serves nobody.
It ends when it is told to, or by the error that parts it from the others.
"""

from __future__ import annotations

from .core import EngineCore
from .errors import BadRequest
from .orders import END, STEP, Admit, Order, decode
from .pool import Pool
from .team import Team


def follow(core: EngineCore, pool: Pool, team: Team) -> None:
    """Step in step with rank 0 until it ends the engine. Raises `RankLost` if the others go."""
    core.hooks = pool
    while (message := team.hear()) != END:
        if message != STEP:
            _carry_out(decode(message), core, pool)
        elif not core.idle:
            core.step()


def _carry_out(order: Order, core: EngineCore, pool: Pool) -> None:
    """The same as `Worker` does with its own, less whom it tells."""
    if isinstance(order, Admit):
        try:
            core.add(order.request)
        except BadRequest:  # rank 0 refused it too, and says so
            return
        pool.expect(order.request.id, order.use())
    else:
        core.abort(order.request_id)
        pool.forget(order.request_id)
