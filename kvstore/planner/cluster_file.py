"""A cluster described in a file: TOML, with names of presets or numbers of one's own.

    model = "llama-3-70b"
    fabric = "rdma-200"
    dram = "256GiB"                     # for KV, of each host whose engine prefills
    decode_dram = "64GiB"               # likewise, of those whose engines only decode
    ttft = 30.0
    racks = 2                           # that each pool's hosts are dealt to; absent: one
    cross_rack_bytes_per_second = 5e9   # of a host, to other racks; absent: as the fabric
    domains = 4                         # of NVLink, likewise; absent: there are none
    nvlink_bytes_per_second = 720e9     # of a host, within its domain

    [[pool]]
    role = "prefill"
    engines = 8
    gpu = "mine"
    tensor_parallel = 8

    [[pool]]
    role = "decode"
    engines = 4
    gpu = "h100"
    tensor_parallel = 4
    elastic = true                      # they prefill instead, where that is busier

    [[failure]]                         # an engine dies, with its host's memory
    role = "decode"
    engine = 0                          # the first of its role
    at = 60.0                           # seconds into the load
    seconds = 30.0                      # until it is back, with nothing; absent: never

    [gpus.mine]                         # likewise [models.NAME] and [fabrics.NAME]
    memory_bytes = 96e9
    memory_bytes_per_second = 4e12
    bf16_flops = 500e12
    pcie_bytes_per_second = 64e9

Raises ConfigError, which names the file and the key, for one that is not so.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from kvstore.config import parse_bytes
from kvstore.core.hardware import Fabric, Gpu
from kvstore.core.model_shape import Latent, ModelShape
from kvstore.errors import ConfigError, Invalid
from kvstore.planner import presets
from kvstore.planner.cluster import Cluster, Failure, Pool, Role

T = TypeVar("T")
Table = dict[str, Any]

_SIZES = {"dram": "dram_bytes", "ssd": "ssd_bytes", "decode_dram": "decode_dram_bytes"}
_NUMBERS = {
    "ttft": "ttft_seconds",
    "tpot": "tpot_seconds",
    "ssd_bytes_per_second": "ssd_bytes_per_second",
    "cross_rack_bytes_per_second": "cross_rack_bytes_per_second",
    "nvlink_bytes_per_second": "nvlink_bytes_per_second",
}
_COUNTS = ("racks", "domains")
_OWN = ("models", "gpus", "fabrics")
_NO_NUMBERS: dict[str, tuple[type, str]] = {
    "tied": (bool, "true or false"),
    "latent": (dict, "a table of kv_rank and rope_dim, and query_rank where there is one"),
}
_ABSENT = {"name", "query_rank"}  # a table's own, and of a latent whose queries have none
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_WHOLE_BITS = 63  # as TOML has them; Python would read longer ones
_KEYS = {"model", "fabric", "pool", "failure", *_SIZES, *_NUMBERS, *_COUNTS, *_OWN}
_FAILURE_KEYS = {"role", "engine", "at", "seconds"}
_POOL_KEYS = {"role", "engines", "gpu", "tensor_parallel", "chunk_tokens", "elastic"}


def read(
    path: Path,
    changes: Mapping[str, Any] = _NOTHING,
    engines: Mapping[Role, int] = _NOTHING,
) -> Cluster:
    """What is given beside the file counts for more, fields of a `Cluster` and how many engines a
    role's only pool has: what the file says is looked at with these."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    try:
        return _cluster(table, changes, engines)
    except (Invalid, TypeError) as error:
        beside = ", with what is given beside it" if changes or engines else ""
        raise ConfigError(f"{path}{beside}: {error}") from None


def _cluster(table: Table, changes: Mapping[str, Any], engines: Mapping[Role, int]) -> Cluster:
    _known("", table, _KEYS)
    models = presets.MODELS | _own(table, "models", _model)
    cards = presets.CARDS | _own(table, "gpus", lambda name, of: _made(Gpu, name, of))
    links = presets.LINKS | _own(table, "fabrics", lambda name, of: _made(Fabric, name, of))
    pools = _wanted(table, "pool", "as in [[pool]] role, engines, gpu", list)
    failures = _wanted({"failure": [], **table}, "failure", "tables, as in [[failure]]", list)
    if "dram_bytes" not in changes:
        _wanted(table, "dram", 'as in dram = "256GiB"', object)
    settings: Table = {_SIZES[key]: _size(key, table[key]) for key in _SIZES.keys() & table}
    settings |= {_NUMBERS[key]: _number(key, table[key]) for key in _NUMBERS.keys() & table}
    settings |= {key: table[key] for key in _COUNTS if key in table}
    if "fabric" in table or "fabric" not in changes:
        fabric = _wanted(table, "fabric", "a name", str)
        settings["fabric"] = presets.named("fabric", fabric, links)
    made = [_pool(number, one, cards) for number, one in enumerate(pools)]
    return Cluster(
        shape=presets.named("model", _wanted(table, "model", "a name", str), models),
        pools=_sized(made, engines),
        failures=tuple(_failure(number, one) for number, one in enumerate(failures)),
        **settings | dict(changes),
    )


def _sized(pools: list[Pool], engines: Mapping[Role, int]) -> tuple[Pool, ...]:
    for role in engines:
        if (count := sum(pool.role is role for pool in pools)) != 1:
            raise ConfigError(f"pools: {count} of role {role}: this wants 1")
    return tuple(replace(one, engines=engines.get(one.role, one.engines)) for one in pools)


def _failure(number: int, table: Any) -> Failure:
    where = f"failure[{number}]"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} = {table!r}: wants a table, as in [[failure]]")
    _known(f"{where}.", table, _FAILURE_KEYS)
    at = _number(f"{where}.at", _wanted(table, "at", "in seconds of the load", object, where))
    seconds = _number(f"{where}.seconds", table["seconds"]) if "seconds" in table else math.inf
    engine = _wanted(table, "engine", "the first of its role is 0", int, where)
    return Failure(_role(table, where), engine, at, seconds)


def _role(table: Table, where: str) -> Role:
    role = _wanted(table, "role", "prefill or decode", str, where)
    if role not in (*Role,):
        raise ConfigError(f"{where}.role = {role!r}: is one of {', '.join(Role)}")
    return Role(role)


def _pool(number: int, table: Any, cards: dict[str, Gpu]) -> Pool:
    where = f"pool[{number}]"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} = {table!r}: wants a table, as in [[pool]]")
    _known(f"{where}.", table, _POOL_KEYS)
    gpu = presets.named(f"{where}.gpu", _wanted(table, "gpu", "a name", str, where), cards)
    engines = _wanted(table, "engines", "how many", int, where)
    degree, chunk_tokens = table.get("tensor_parallel", 1), table.get("chunk_tokens", 0)
    elastic = table.get("elastic", False)
    if not isinstance(elastic, bool):
        raise ConfigError(f"{where}.elastic = {elastic!r}: wants true or false")
    return Pool(_role(table, where), engines, gpu, degree, chunk_tokens, elastic)


def _own(table: Table, key: str, make: Callable[[str, Table], T]) -> dict[str, T]:
    found = table.get(key, {})
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise ConfigError(f"{key}: wants tables, as in [{key}.mine]")
    return {name.lower(): make(f"{key}.{name}", one) for name, one in found.items()}


def _model(where: str, table: Table) -> ModelShape:
    given = _given(ModelShape, where, table)
    if "latent" in given:
        latent = _given(Latent, f"{where}.latent", given["latent"])
        given = {**given, "latent": _one(where, Latent, {"query_rank": None, **latent})}
    return _one(where, ModelShape, given | {"name": _name(where)})


def _made(kind: Callable[..., T], where: str, table: Table) -> T:
    return _one(where, kind, _given(kind, where, table) | {"name": _name(where)})


def _name(where: str) -> str:
    return where.partition(".")[2]


def _one(where: str, kind: Callable[..., T], given: Table) -> T:
    try:
        return kind(**given)
    except Invalid as error:  # names the field, and not whose
        raise ConfigError(f"{where}: {error}") from None


def _given(kind: Callable[..., Any], where: str, table: Table) -> Table:
    """A table that may make one of this kind: what its fields are is theirs to look at."""
    known = {item.name for item in fields(kind)} - {"name"}  # type: ignore[arg-type]
    _known(f"{where}.", table, known)
    for key, value in table.items():
        other, right = _NO_NUMBERS.get(key, (None, "a number"))
        if not (isinstance(value, other) if other else _is_number(value)):
            raise ConfigError(f"{where}.{key} = {value!r}: wants {right}")
    for item in fields(kind):  # type: ignore[arg-type]
        if item.default is MISSING and item.name not in {*table, *_ABSENT}:
            raise ConfigError(f"{where}.{item.name} is not there: wants a number")
    return table


def _known(where: str, table: Table, keys: set[str]) -> None:
    if strange := sorted(table.keys() - keys):
        raise ConfigError(f"{where}{strange[0]}: is not known; {', '.join(sorted(keys))} are")


def _wanted(table: Table, key: str, right: str, kind: type[T], where: str = "") -> T:
    name = f"{where}.{key}" if where else key
    if key not in table:
        raise ConfigError(f"{name} is not there: wants {right}")
    value = table[key]
    if not isinstance(value, kind):
        raise ConfigError(f"{name} = {value!r}: wants {right}")
    return value


def _number(key: str, value: Any) -> float:
    if not _is_number(value):
        raise ConfigError(f"{key} = {value!r}: wants a number of seconds, or of bytes a second")
    return float(value)


def _is_number(value: Any) -> bool:
    short = type(value) is int and value.bit_length() <= _WHOLE_BITS
    return short or type(value) is float


def _size(key: str, value: Any) -> int:
    return value if type(value) is int else parse_bytes(key, str(value))
