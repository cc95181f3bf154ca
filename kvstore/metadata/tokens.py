"""Bearer tokens: how one is made, and how it is known again from a record that does not hold it.

A token reads `mpt_ID_SECRET`. The id finds the record; the whole is compared by its digest, which
says nothing of a secret of 256 bits that was drawn by chance.
"""

from __future__ import annotations

import hmac
import re
import secrets

from blake3 import blake3

from kvstore.metadata.records import TokenRecord

_ID_BYTES, _SECRET_BYTES = 6, 32
ID = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_TOKEN = re.compile(rf"mpt_({ID.pattern})_[0-9a-f]{{{2 * _SECRET_BYTES}}}")


def make(tenant: str, admin: bool, expires: int) -> tuple[str, TokenRecord]:
    """A new token, and the record by which nodes know it. Only its bearer ever has the token."""
    name = secrets.token_hex(_ID_BYTES)
    token = f"mpt_{name}_{secrets.token_hex(_SECRET_BYTES)}"
    return token, TokenRecord(name, _digest(token), tenant, admin, expires)


def id_of(token: str) -> str | None:
    """The id of the record that a token would have; None if it is no token."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def is_of(token: str, record: TokenRecord) -> bool:
    """Whether this is the token that the record was made for."""
    return hmac.compare_digest(_digest(token), record.digest)


def _digest(token: str) -> str:
    return blake3(token.encode()).hexdigest()
