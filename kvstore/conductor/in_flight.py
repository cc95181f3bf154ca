"""What is on its way to the engines of a crew, waits there or runs, and so counts as their load.

A prompt counts from the decision on, in the line of one engine; its blocks count as coming there.
It leaves when the engine says what became of it, when the engine leaves, or when its time is over:
some seconds if the engine never said that it came, and of one that is to be decoded, some seconds
behind its prefill. Whatever is counted in is counted out with the same numbers, so an engine that
has nothing has exactly nothing.

A prompt wants room to be decoded in (`.room`), also for some seconds after its prefill where that
was done by an engine that does not decode. What becomes of those that this conductor was asked for
says how crowded it is (`.crowd`), and who has had how much of it (`.clients`).

Requests that another conductor sent are known by what their engine says of them, and counted once,
by their ids. A request is at one engine at most: said of another, it has gone there.
"""

from __future__ import annotations

import numpy as np

from kvstore.conductor.clients import Clients
from kvstore.conductor.crowd import Crowd
from kvstore.conductor.early import Early
from kvstore.conductor.engines import Crew, Engine
from kvstore.conductor.prompts import Computes, Prompt, Sequence, Stage
from kvstore.conductor.refused import Refused
from kvstore.conductor.room import Parked, Room
from kvstore.core.fingerprints import Prints
from kvstore.core.turns import Places
from kvstore.errors import Overloaded
from kvstore.kernels import decision as loops
from kvstore.kernels import expected
from kvstore.kernels.rules import Rules
from kvstore.limits import IN_FLIGHT_SECONDS, SENT_SECONDS

NO_PRINTS: Prints = np.zeros(0, np.uint64)
_PLACES_MIN = 1 << 10
_RETRY_MS = 1_000
_LINE_SECONDS = 3.0  # since its caller last asked for room: one that is there asks each second


class InFlight:
    """Of one crew, within what its tenant may have of the places for all requests and blocks."""

    def __init__(self, crew: Crew, tenant: str, requests: Places, blocks: Places) -> None:
        self._crew, self.room = crew, Room(crew)
        self._tenant, self._request_places, self._block_places = tenant, requests, blocks
        self.prompts: dict[str, Prompt] = {}
        self._prefilled: dict[str, float] = {}  # that nobody decodes yet, until when
        self.sequences: dict[str, Sequence] = {}
        # Ids by what they wait for, the first to be over first.
        self._sent: dict[str, None] = {}
        self._held: dict[str, None] = {}
        self.expected = expected.empty(_PLACES_MIN)
        self.crowd, self.clients, self.refused = Crowd(), Clients(), Refused()
        self._early = Early()
        self._blocks = 0  # that prompts are expected to have, all together

    @property
    def held(self) -> tuple[int, int]:
        """Requests, and blocks that are expected of them."""
        return len(self.prompts) + len(self._prefilled) + len(self.sequences), self._blocks

    def room_came_too_late(self, request: str, now: float) -> None:
        """One that this conductor sent will not be decoded."""
        prompt = self.prompts.get(request)
        if prompt is not None and prompt.ours:
            self.crowd.lost(request, now)
            prompt.decided = float("nan")  # it was counted: what becomes of it says nothing more
        elif request in self._prefilled and self.crowd.has_served(request, now):
            self.crowd.lost(request, now)
        self._forget_prefilled(request)
        self.room.forget(request)

    def send(
        self,
        request: str,
        engine: Engine,
        work: float,
        prints: Prints,
        now: float,
        takes: float,
        tokens: int = 0,
        computes: Computes | None = None,
        hand: float = 0.0,
    ) -> None:
        """A prompt of so many tokens is sent to an engine. Raises `Overloaded`."""
        self.drop(request, now)
        self._early.forget(request)
        self._take_place()
        prompt = self._enter(request, engine, work, prints, now, tokens)
        prompt.decided, prompt.takes, prompt.computes = now, takes, computes
        if hand:
            prompt.hand = hand
            loops.owe(self._crew.fleet.hosts, engine.host, hand)

    def accepted(
        self,
        request: str,
        engine: Engine,
        work: float,
        prints: Prints,
        now: float,
        tokens: int = 0,
    ) -> None:
        """An engine says that it has a prompt. One too many is not counted: that is no reason to
        send the engine nothing at all."""
        prompt = self.prompts.get(request)
        if prompt is None or prompt.engine is not engine:
            self.drop(request, now)
            if not self._request_places.try_take(self._tenant):
                return
            prompt = self._enter(request, engine, work, prints, now, tokens)
        if prompt.stage is Stage.SENT:
            prompt.stage = Stage.WAITING
        self._hold(request, prompt, now)

    def knows(self, request: str, engine: Engine) -> bool:
        """Whether a prompt is counted there already."""
        prompt = self.prompts.get(request)
        return prompt is not None and prompt.engine is engine

    def began(self, request: str, engine: Engine, now: float) -> None:
        prompt = self.prompts.get(request)
        if prompt is None or prompt.engine is not engine or prompt.stage is Stage.RUNNING:
            return
        fleet = self._crew.fleet
        loops.begin(fleet.engines, fleet.lines, engine.number, prompt.size, prompt.work, now)
        prompt.stage, prompt.began = Stage.RUNNING, now
        self._hold(request, prompt, now)
        engine.running += 1
        engine.together |= engine.running > 1

    def ended(self, request: str, engine: Engine, now: float) -> None:
        """An engine has its first token, which may be its last."""
        prompt = self.prompts.get(request)
        if prompt is not None and prompt.engine is engine:
            self._prefilled_by(request, prompt, now)
        sequence = self.sequences.get(request)
        if engine.decode is not None and (sequence is None or sequence.engine is engine):
            # If it goes on, the engine says so in the same message.
            self.decoding(request, engine, now)

    def _prefilled_by(self, request: str, prompt: Prompt, now: float) -> None:
        """If this conductor sent it, how well was it predicted?"""
        engine = prompt.engine
        if prompt.ours:
            engine.errors.observe(now - prompt.decided, prompt.takes)
            self._compare(prompt, engine, now)
            self.crowd.served(request, now)
        wants = request in self.room and request not in self.sequences
        self._take_out(request, prompt, now)
        if request in self.sequences:
            self._owe_longer(request, now)
        alone = engine.decode is None
        if wants and alone and self._request_places.try_take(self._tenant):
            self._prefilled[request] = now + SENT_SECONDS
        else:
            self.room.forget(request)

    def _compare(self, prompt: Prompt, engine: Engine, now: float) -> None:
        """What a prefill took from beginning to end, which nothing ran beside, is more or less than
        what the engine's own reports say that such a prefill takes."""
        if prompt.computes is None or engine.together or prompt.stage is not Stage.RUNNING:
            return
        if engine.prefill is not None and engine.decode is None:
            engine.bias.observe(now - prompt.began, engine.prefill.cost.seconds(*prompt.computes))
            self._crew.prefilled(engine, now)

    def handed(self, request: str) -> None:
        """It is known to whom its KV goes: that is counted by who carries it."""
        prompt = self.prompts.get(request)
        if prompt is not None:
            self._settle(prompt)

    def _settle(self, prompt: Prompt) -> None:
        if prompt.hand:
            loops.owe(self._crew.fleet.hosts, prompt.engine.host, -prompt.hand)
            prompt.hand = 0.0

    def elsewhere(self, request: str, now: float) -> None:
        """An engine that does not prefill says that it has it, whole: nearly all of it is in the
        pool. Whoever was to prefill it never hears of it: it waits in no line and wants no room."""
        prompt = self.prompts.get(request)
        if prompt is not None and prompt.stage is Stage.SENT:
            if prompt.ours:
                self.crowd.served(request, now)
            self.drop(request, now)

    def given_up(self, request: str, engine: Engine, now: float) -> None:
        """By an engine that may not be the one that has it by now; or by its caller, of which the
        engine says the same. A caller that leaves before its time says nothing of a crowd."""
        if self.knows(request, engine):
            if self.prompts[request].is_late(now):
                self.crowd.lost(request, now)
            self.drop(request, now)
        elif request not in self.prompts:
            self._has_room(request)
        sequence = self.sequences.get(request)
        if sequence is not None and sequence.engine is engine:
            self.forgive(request)

    def owe(self, request: str, engine: Engine, tokens: int, now: float) -> None:
        """A request is sent to an engine to be decoded. Raises `Overloaded`."""
        self.forgive(request)
        self._take_place()
        self._has_room(request)
        self.sequences[request] = Sequence(engine, tokens, now + SENT_SECONDS)
        engine.owed += 1
        engine.owed_tokens += tokens
        self._crew.load(engine)

    def _owe_longer(self, request: str, now: float) -> None:
        """Whoever is to decode it waits for its prefill, and says nothing of it before that."""
        sequence = self.sequences.pop(request)
        sequence.until = now + SENT_SECONDS
        self.sequences[request] = sequence

    def wait(self, parked: Parked, now: float) -> None:
        """A caller waits until an engine has room. Raises `Overloaded`."""
        self.forgive(parked.request)
        self.wants_room(parked.request, parked.tokens, now)
        self.room.stand(parked)

    def wants_room(self, request: str, tokens: int, now: float) -> None:
        """Its caller waits for some, in line or, where that is full, to ask again. Raises
        `Overloaded`."""
        if request not in self.prompts:
            until = max(now + _LINE_SECONDS, self._prefilled.get(request, now))
            self._has_room(request)
            self._take_place()
            self._prefilled[request] = until
            self.room.want(request, tokens)

    def serve(self, engine: Engine, rules: Rules, now: float) -> None:
        """Have an engine decode those that wait, for as many as it has room for."""
        while (one := self.room.first(engine, rules, now, self.crowd.presses(rules))) is not None:
            try:
                self.owe(one.request, engine, one.tokens, now)
            except Overloaded:
                return  # its caller asks again
            self.room.step_out(one)
            one.served(engine, now)

    def decoding(self, request: str, engine: Engine, now: float) -> None:
        """An engine counts a request itself from now on, and no other is to decode it."""
        known = request in self.prompts or request in self.sequences
        if engine.prefill is None and not known:
            self._early.add(request, now)
        self.forgive(request)
        self._has_room(request)

    def drop(self, request: str, now: float) -> None:
        """A prompt counts nowhere any more."""
        prompt = self.prompts.get(request)
        if prompt is not None:
            self._take_out(request, prompt, now)
        self._has_room(request)

    def _has_room(self, request: str) -> None:
        """It wants none, or none any more."""
        self._forget_prefilled(request)
        self.room.forget(request)

    def _forget_prefilled(self, request: str) -> None:
        if self._prefilled.pop(request, None) is not None:
            self._request_places.give_back(self._tenant)

    def _take_out(self, request: str, prompt: Prompt, now: float) -> None:
        del self.prompts[request]
        self._request_places.give_back(self._tenant)
        self._sent.pop(request, None)
        self._held.pop(request, None)
        self._settle(prompt)
        engine = prompt.engine
        if prompt.stage is Stage.RUNNING:
            engine.running -= 1
            loops.end(self._crew.fleet.engines, engine.number, prompt.work, engine.running, now)
            engine.together &= engine.running > 0
        else:
            loops.leave_line(self._crew.fleet.lines, engine.number, prompt.size, prompt.work)
        if len(prompt.prints):
            expected.settle(*self.expected, prompt.prints, engine.number)
            self._blocks -= len(prompt.prints)
            self._block_places.give_back(self._tenant, len(prompt.prints))

    def leave(self, engine: Engine, now: float) -> None:
        """All that was at an engine counts no more."""
        for request in [one for one, at in self.prompts.items() if at.engine is engine]:
            self.drop(request, now)
        for request in [one for one, at in self.sequences.items() if at.engine is engine]:
            self.forgive(request)

    def end(self) -> None:
        """All engines have left: nobody is to decode what waits for that."""
        for request in list(self._prefilled):
            self._has_room(request)

    def expire(self, now: float) -> None:
        """What nobody has heard of for too long counts no more."""
        for line in (self._sent, self._held):
            while line and self.prompts[request := next(iter(line))].until <= now:
                self.drop(request, now)
        for request in [one for one, until in self._prefilled.items() if until <= now]:
            self._has_room(request)
        while self.sequences:
            request = next(iter(self.sequences))
            if self.sequences[request].until > now:
                break
            if request in self.prompts:
                self._owe_longer(request, now)
            else:
                self.forgive(request)
        if not self._blocks and len(self.expected.places) > _PLACES_MIN:
            self.expected = expected.empty(_PLACES_MIN)

    def check(self) -> None:
        fleet, blocks = self._crew.fleet, 0
        lines: dict[int, list[Prompt]] = {}
        for request, prompt in self.prompts.items():
            assert (request in self._sent) == (prompt.stage is Stage.SENT)
            assert (request in self._held) == (prompt.stage is not Stage.SENT)
            assert self._crew.rows[prompt.engine.number] is prompt.engine, "at nobody's"
            lines.setdefault(prompt.engine.number, []).append(prompt)
            blocks += len(prompt.prints)
        assert blocks == self._blocks, "blocks are miscounted"
        assert not self._prefilled.keys() & (self.prompts.keys() | self.sequences.keys())
        self.room.check()
        self.clients.check()
        for host in {one.engine.host for one in self.prompts.values()}:
            hands = sum(one.hand for one in self.prompts.values() if one.engine.host == host)
            assert abs(fleet.hosts[host]["owed"] - hands) < 1e-6 * (1 + hands), (
                "KV is owed of no prompt"
            )
        for engine in self._crew.by_id.values():
            mine = lines.get(engine.number, [])
            waiting = [one for one in mine if one.stage is not Stage.RUNNING]
            count, seconds = loops.waiting(fleet, engine.number)
            assert count == len(waiting) and engine.running == len(mine) - count
            assert abs(seconds - sum(one.work for one in waiting)) < 1e-6 * (1 + seconds)
            ahead = fleet.lines["ahead"][:, engine.number]
            assert waiting or not ahead.any(), "seconds of nothing"
            runs = sum(one.work for one in mine if one.stage is Stage.RUNNING)
            assert abs(fleet.engines[engine.number]["running"] - runs) < 1e-6 * (1 + runs)
            owed = [one for one in self.sequences.values() if one.engine is engine]
            assert engine.owed == len(owed)
            assert engine.owed_tokens == sum(one.tokens for one in owed)
        if not blocks:
            assert not self.expected.state[expected.USED], "blocks of no prompt are expected"
            for name in expected.PLACE.names or ():
                assert not self.expected.places[name].any(), "what is empty is not as it was"

    def _enter(
        self, request: str, engine: Engine, work: float, prints: Prints, now: float, tokens: int
    ) -> Prompt:
        prints = expected.marked(prints)
        if len(prints) and not self._block_places.try_take(self._tenant, len(prints)):
            prints = NO_PRINTS  # it counts as load, and nobody counts on its blocks
        if len(prints):
            self._make_room(2 * len(prints))
            expected.expect(*self.expected, prints, engine.number)
            self._blocks += len(prints)
        size = loops.wait_in_line(self._crew.fleet.lines, engine.number, float(work), True)
        prompt = Prompt(engine, Stage.SENT, size, work, prints, now + SENT_SECONDS, float("nan"))
        self.prompts[request] = prompt
        self._sent[request] = None
        has = request in self.sequences or self._early.has(request, now)
        if tokens and self._crew.decoders and not has:
            self.room.want(request, tokens)
        return prompt

    def _hold(self, request: str, prompt: Prompt, now: float) -> None:
        """The engine has it: it counts for longer."""
        self._sent.pop(request, None)
        self._held.pop(request, None)
        self._held[request] = None
        prompt.until = now + IN_FLIGHT_SECONDS

    def forgive(self, request: str) -> None:
        """No engine owes it to be decoded: while it is prefilled it wants room anew."""
        sequence = self.sequences.pop(request, None)
        if sequence is not None:
            self._request_places.give_back(self._tenant)
            sequence.engine.owed -= 1
            sequence.engine.owed_tokens -= sequence.tokens
            self._crew.load(sequence.engine)
            if request in self.prompts:
                self.room.want(request, sequence.tokens)

    def _make_room(self, places: int) -> None:
        while 2 * (int(self.expected.state[expected.USED]) + places) > len(self.expected.places):
            wider = expected.empty(2 * len(self.expected.places))
            expected.move(self.expected, wider)
            self.expected = wider

    def _take_place(self) -> None:
        if not self._request_places.try_take(self._tenant):
            held = self._request_places.held(self._tenant)
            text = f"{held} requests of {self._tenant} are in flight: no more are kept track of"
            raise Overloaded(text, _RETRY_MS)
