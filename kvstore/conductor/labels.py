"""The racks and NVLink domains of one crew's hosts, by number, as its arrays know them. A number is
a label's for as long as some host has it, so there are no more of them than twice the hosts."""

from __future__ import annotations

from kvstore.kernels.fleet import UNLABELLED

DOMAIN, RACK = "domain", "rack"


class Labels:
    """Domains and racks are numbered together."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._hosts: list[int] = []  # that have it, by number
        self._free: list[int] = []

    @property
    def count(self) -> int:
        """Numbers are less than this; 0 where no host has any."""
        return len(self._hosts) if self._numbers else 0

    def take(self, kind: str, name: str) -> int:
        """One more host has it; no name is no label."""
        if not name:
            return UNLABELLED
        number = self._numbers.get((kind, name))
        if number is None:
            if not self._free:
                self._free.append(len(self._hosts))
                self._hosts.append(0)
            number = self._numbers[kind, name] = self._free.pop()
        self._hosts[number] += 1
        return number

    def give_back(self, kind: str, name: str) -> None:
        """One host has it no more."""
        if not name:
            return
        number = self._numbers[kind, name]
        self._hosts[number] -= 1
        if not self._hosts[number]:
            del self._numbers[kind, name]
            self._free.append(number)

    def check(self, numbers: list[int]) -> None:
        """`numbers` are those of all hosts."""
        used = [one for one in numbers if one != UNLABELLED]
        assert sorted(set(used)) == sorted(self._numbers.values()), "a number of nobody"
        assert sorted([*self._numbers.values(), *self._free]) == list(range(len(self._hosts)))
        assert all(self._hosts[one] == used.count(one) for one in set(used)), "a host is lost"
