"""What the engine refuses, and by which name: all are `Invalid`, since the same call fails again.

A full cache is no error: allocation answers None and the request waits.
"""

from __future__ import annotations

from kvstore.errors import Invalid


class UnsupportedModel(Invalid):
    """The folder holds a model this engine does not compute; says what was found and what works."""


class BrokenCheckpoint(Invalid):
    """The weights do not fit the config: a tensor is missing, left over, or of another shape."""


class BadRequest(Invalid):
    """The request cannot be run: no tokens, tokens outside the vocabulary, or an id in use."""


class RequestTooLong(BadRequest):
    """Prompt and new tokens exceed the model's positions or the whole cache."""
