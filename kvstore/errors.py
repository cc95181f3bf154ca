"""Everything that can go wrong, by what the caller should do about it.

KVStoreError
 ├ Invalid    (change the call)   ├ UnknownNamespace ├ SpecMismatch ├ OutOfRange ├ ConfigError
 ├ Lapsed     (open again)        ├ PinExpired ├ WindowClosed ├ AlreadyWritten ├ Incomplete
 │                                └ SessionEnded
 ├ Rejected   (you may retry)     ├ Overloaded (├ QuotaExceeded ├ TooLate) ├ Draining
 │                                └ Unavailable (└ Crowded)
 ├ Denied     (you may not)       ├ NotYours ├ Unauthenticated ├ WrongTenant
 │                                └ Quarantined
 └ Broken     (file a bug)        └ InvariantError

A miss is a value, never an error: absent, unsealed, evicted or damaged blocks come back as a
`Miss` reason beside their key (see `kvstore.block`).
"""

from __future__ import annotations


class KVStoreError(Exception):
    """Base of all errors Moonpool raises. The message names what was wrong and what is right."""

    answered = False  # whether a server said it of itself, having done with the call


class Invalid(KVStoreError):
    """The call itself is wrong; the same call will fail again. Nothing was changed."""


class UnknownNamespace(Invalid):
    """The namespace has not been registered with its KVSpec."""


class SpecMismatch(Invalid):
    """The namespace is registered with a spec that differs; the message names the field."""


class OutOfRange(Invalid):
    """A layer, head, token or byte range reaches outside the block."""


class ConfigError(Invalid):
    """A setting is wrong; the message names its key and the fix."""


class Lapsed(KVStoreError):
    """What the caller held is no longer held. Look the block up again."""


class PinExpired(Lapsed):
    """The pin's time, on the owner's clock, is over."""


class WindowClosed(Lapsed):
    """The write window was sealed, aborted, or ended with its session."""


class AlreadyWritten(Lapsed):
    """This fragment of the block has been written once already."""


class Incomplete(Lapsed):
    """A seal found strips that nobody wrote; the message names them."""


class SessionEnded(Lapsed):
    """The session named by the call is unknown here: it ended, or the node restarted."""


class Rejected(KVStoreError):
    """Not now. `retry_after_ms` says when it may be worth another try."""

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Overloaded(Rejected):
    """Pinned and open blocks fill the pool, and none was let go within the deadline."""


class QuotaExceeded(Overloaded):
    """A tenant would have more than its quota, and what it has cannot go now."""


class TooLate(Overloaded):
    """It was let in, and will not be served in time any more: to wait on is of no use."""


class Draining(Rejected):
    """The node is shutting down: it serves reads and takes no new blocks."""


class Unavailable(Rejected):
    """The node cannot be reached, or did not answer within the deadline."""


class Crowded(Unavailable):
    """The node is well, and has no data connection left for this tenant."""


class Denied(KVStoreError):
    """The caller may not do this, now or later."""


class NotYours(Denied):
    """The handle belongs to another session, or was not made by this node."""


class Unauthenticated(Denied):
    """No identity where one is required."""


class Quarantined(Denied):
    """The namespace gave wrong KV: nobody reads or writes it until an operator releases it."""


class WrongTenant(Denied):
    """The block belongs to another tenant."""


class Broken(KVStoreError):
    """Moonpool broke a promise of its own."""


class InvariantError(Broken):
    """A structure failed its own `check()`."""
