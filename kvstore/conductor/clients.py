"""What a crew's clients have lately asked for and had, and how soon their first tokens are wanted
for that: see `kvstore.kernels.fairness`.

A client is whom a caller asks for. Of more than `CLIENTS_MAX` who was not heard of for the longest
is forgotten, and begins anew with nothing.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from kvstore.kernels import fairness
from kvstore.limits import CLIENTS_MAX

_ROWS_MIN = 8
ASKED, HAD = range(2)


class Clients:
    """Each request counts once for each."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, int] = OrderedDict()  # who asked the longest ago comes first
        self._tokens = np.zeros((2, _ROWS_MIN))
        self._faded = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, client: str) -> bool:
        return client in self._rows

    def patience(self, client: str, patience: float) -> float:
        """The share of its target that its first token may take, where in the mean it is
        `patience`."""
        row = self._rows.get(client)
        if len(self._rows) == (row is not None):
            return patience  # there is nobody else
        had = 0.0 if row is None else float(self._tokens[HAD, row])
        share = fairness.fair_share(self._tokens)
        return float(fairness.used_by(patience, share, had))

    def lacks(self, client: str) -> float:
        """How much less it has had than the client that has had the most, as a share of that."""
        row = self._rows.get(client)
        if len(self._rows) == (row is not None):
            return 0.0  # there is nobody else
        most = float(self._tokens[HAD].max())
        had = 0.0 if row is None else float(self._tokens[HAD, row])
        return 1.0 - had / most if most else 0.0

    def counted(self, client: str) -> tuple[float, float]:
        """Tokens that it lately asked for, and had."""
        row = self._rows[client]
        return float(self._tokens[ASKED, row]), float(self._tokens[HAD, row])

    def asked(self, client: str, tokens: float, now: float) -> None:
        """It wants so many tokens of service."""
        fairness.fade(self._tokens, now - self._faded)
        self._faded = max(self._faded, now)
        row = self._row(client)
        self._tokens[ASKED, row] += tokens

    def had(self, client: str, tokens: float) -> None:
        """It is to have them."""
        row = self._row(client)
        self._tokens[HAD, row] += tokens

    def _row(self, client: str) -> int:
        row = self._rows.get(client)
        if row is None:
            row = self._new_row()
        self._rows[client] = row
        self._rows.move_to_end(client)
        return row

    def _new_row(self) -> int:
        if len(self._rows) == CLIENTS_MAX:
            _, row = self._rows.popitem(last=False)
            self._tokens[:, row] = 0.0
            return row
        if len(self._rows) == self._tokens.shape[1]:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)], axis=1)
        return len(self._rows)

    def check(self) -> None:
        assert len(self._rows) <= CLIENTS_MAX
        assert sorted(self._rows.values()) == list(range(len(self._rows))), "two share a row"
        assert not self._tokens[:, len(self._rows) :].any(), "tokens are nobody's"
        assert (self._tokens >= 0).all()
