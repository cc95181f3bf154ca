"""What the engine refuses, and by which name: `Invalid`, since the same call fails again.

A full cache is no error: allocation answers None and the request waits. An engine of several
processes that loses one of them ends.
"""

from __future__ import annotations

from kvstore.errors import Invalid, Unavailable


class UnsupportedModel(Invalid):
    """The folder holds a model this engine does not compute; says what was found and what works."""


class BrokenCheckpoint(Invalid):
    """The weights do not fit the config: a tensor is missing, left over, or of another shape."""


class BadRequest(Invalid):
    """The request cannot be run: no tokens, tokens outside the vocabulary, or an id in use."""


class RequestTooLong(BadRequest):
    """Prompt and new tokens exceed the model's positions or the whole cache."""


class RankLost(Unavailable):
    """Another rank of this engine ended or does not answer. The engine ends; start it again."""
