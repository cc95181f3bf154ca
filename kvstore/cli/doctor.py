"""`moonpool doctor`: whether the nodes of the pool can be reached from here, and how well; and,
before there is a node, whether one could be started.

It asks as a client does, so what it finds is what a client of this host would find; what nodes have
found of each other they say. Nothing is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from tqdm import tqdm

from kvstore.cli.admin import contact_facts
from kvstore.cli.diagnosis import cause
from kvstore.cli.host import clock_and_certificate, gpus, look_at
from kvstore.cli.host_verdict import ETCD_SECONDS_MAX, verdict
from kvstore.cli.node_options import add_settings, node_config
from kvstore.cli.options import (
    Commands,
    add_etcd,
    add_metadata,
    add_node,
    command,
    locator,
    metadata,
    metadata_file,
    pool_text,
    refuse_idle,
)
from kvstore.config import Credentials, host_name
from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.metadata.records import BadRecord, NodeRecord
from kvstore.rpc.access import Role
from kvstore.rpc.channel import open_channel
from kvstore.rpc.identity import announced_host, listen_address
from kvstore.rpc.status import typed_errors
from kvstore.rpc.tls import check_role
from kvstore.transfer.probe import Probe, judge
from kvstore.wire.v1 import admin_pb2 as pb
from kvstore.wire.v1 import admin_pb2_grpc

DEADLINE_SECONDS = 5.0
_AT_ONCE = 16  # nodes that are asked for their figures; probes are made one by one

Said = dict[str, Any]  # of one node, or of all: as --json prints it


def add(commands: Commands) -> None:
    doctor = command(
        commands,
        "doctor",
        "check that the nodes of the pool can be reached, how fast bytes go to and from each, and "
        "what they have found of themselves and each other; exit code 1 on an error, which names "
        "its cause and a cure",
        "moonpool doctor --etcd http://10.0.0.1:2379\n"
        "  moonpool doctor --before-start --dram 64GiB --ssd /data/moonpool:200GiB",
    )
    add_node(doctor)
    add_etcd(doctor)
    add_metadata(doctor)
    doctor.add_argument(
        "--before-start",
        action="store_true",
        help="look at this host and the pool's metadata alone, as `moonpool node` with the same "
        "options would find them: settings, memory, locked memory, huge pages, ports, disks, "
        "O_DIRECT, certificate, clock",
    )
    add_settings(doctor.add_argument_group("what the node is told, with --before-start"))
    doctor.add_argument("--json", action="store_true", help="one JSON object")
    doctor.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    if not args.before_start:
        _refuse_settings(args)
    credentials = Credentials.of_environment()
    said: Said = {"nodes": [], "warnings": [], "errors": []}
    said["host"] = _host(args, credentials)
    known = _by_address(_records(args, said), said)
    if args.before_start:
        return _told(args, said)
    own = _own(args, known, said)
    addresses = [*own, *sorted(known.keys() - set(own))]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        stats = list(threads.map(lambda one: _stats(one, credentials), addresses))
    epochs = {record.node_id: record.epoch for record in known.values()}
    epochs |= {one.node_id: one.epoch for one in stats if isinstance(one, pb.StatsReply)}
    progress = tqdm(
        zip(addresses, stats, strict=True),
        total=len(addresses),
        unit="node",
        file=sys.stderr,
        leave=False,
        disable=None,
    )
    for address, reply in progress:
        node: Said = {"address": address, "reachable": False, "tls": credentials.tls is not None}
        node |= {"transports": {}, "contacts": [], "ssd": [], "warnings": [], "errors": []}
        said["nodes"].append(node)
        if isinstance(reply, pb.StatsReply):
            measured = {} if _acts_for_none(credentials) else _measured(address)
            _examine(node, known, reply, epochs, measured)
        else:
            node["errors"].append(reply)
    return _told(args, said)


def _refuse_settings(args: argparse.Namespace) -> None:
    """A node that runs has its own, whatever is said here of them."""
    plain = argparse.ArgumentParser()
    add_settings(plain)
    for name, usual in vars(plain.parse_args([])).items():
        if getattr(args, name) != usual:
            refuse_idle(args, (name,), "without --before-start: a node that runs has its own")


def _told(args: argparse.Namespace, said: Said) -> int:
    """The exit code."""
    if args.json:
        print(json.dumps(said))
    else:
        _print(said)
    return 1 if any(one["errors"] for one in (said, said["host"], *said["nodes"])) else 0


def _host(args: argparse.Namespace, credentials: Credentials) -> Said:
    """What is wrong with this host: all of it before a node starts, else what callers need."""
    said: Said = {"gpus": {}, "warnings": [], "errors": []}
    try:
        config = node_config(args)
        if args.before_start:
            listen_address(config.listen, config.tls)
            announced_host(config.listen, config.advertise)
            if config.tls is not None:
                check_role(config.tls, Role.NODE)
            host = look_at(config, credentials.tls)
        else:
            host = clock_and_certificate(credentials.tls)
            said["gpus"] = gpus()
    except ConfigError as error:
        said["errors"].append(str(error))
        return said
    for finding in verdict(config, host):
        said["errors" if finding.error else "warnings"].append(finding.text)
    return said


def _records(args: argparse.Namespace, said: Said) -> list[NodeRecord]:
    """The nodes of the pool, if it is known which pool is meant."""
    if args.etcd is None and args.metadata is None and args.node:
        return []
    if args.etcd is None and not metadata_file(args).exists():
        if args.before_start:
            return []  # the node is to make it
        if args.metadata is None:
            said["warnings"].append(
                "which other nodes there are is not known: give --etcd (or --metadata) as this "
                "host's node was given it"
            )
            return []

    async def listed() -> tuple[list[NodeRecord], list[BadRecord]]:
        async with metadata(args) as store:
            entries, _ = await store.list(NodeRecord.prefix)
            return NodeRecord.readable(entries)

    began = time.monotonic()
    try:
        found, bad = asyncio.run(listed())
        took = time.monotonic() - began
        if took > ETCD_SECONDS_MAX:
            said["warnings"].append(
                f"the pool's metadata answered after {took:.1f} s: nodes that wait longer than "
                "their lease are held for dead; see what else its disk and network carry"
            )
        said["errors"] += [
            f"a node was not looked at, as its record in the pool's metadata is bad: {error}"
            for error in bad
        ]
        return found
    except KVStoreError as error:
        if isinstance(error, ConfigError) and not args.before_start:
            raise
        where = f"--etcd = {args.etcd}" if args.etcd else str(metadata_file(args))
        said["errors"].append(f"the pool's metadata ({where}) cannot be read: {error}")
        return []


def _by_address(records: Iterable[NodeRecord], said: Said) -> dict[str, NodeRecord]:
    """Hosts whose nodes all listen on loopback have one address between them: whoever calls it
    finds himself, and would hold the pool for well."""
    known: dict[str, NodeRecord] = {}
    for record in records:
        other = known.setdefault(record.address, record)
        if other is not record:
            said["errors"].append(
                f"nodes {other.node_id} and {record.node_id} both announce {record.address}: give "
                "each an address that the other hosts reach (--listen, with certificates, or "
                "--advertise); one that is gone is forgotten with its lease"
            )
    return known


def _own(args: argparse.Namespace, known: Mapping[str, NodeRecord], said: Said) -> list[str]:
    """The node of this host, or the one that was named; none where none runs: then the pool's are
    looked at, and that it has none is an error."""
    named = args.etcd is not None or args.metadata is not None
    try:
        address = locator(args).find()
    except Unavailable as error:
        if not known and not said["errors"]:
            if not named:
                raise
            option = "--cluster" if args.etcd else "--metadata"
            said["errors"].append(
                f"no node runs in {pool_text(args)}: is {option} what the nodes have?"
            )
        said["warnings"].append(f"no node of this host was looked at: {error}")
        return []
    if (known or (named and not said["errors"])) and address not in known:
        said["errors"].append(
            f"the node at {address} is not in the pool that was named: it was started with another "
            "--etcd or --cluster, or cannot reach it"
        )
    return [address]


def _stats(address: str, credentials: Credentials) -> pb.StatsReply | str:
    """What a node says of itself, or why it says nothing."""
    try:
        with closing(open_channel(address, credentials)) as channel, typed_errors(address):
            stub = admin_pb2_grpc.AdminStub(channel)
            reply: pb.StatsReply = stub.Stats(pb.StatsRequest(), timeout=DEADLINE_SECONDS)
            return reply
    except KVStoreError as error:
        return cause(address, credentials.tls, error)


def _examine(
    node: Said,
    known: Mapping[str, NodeRecord],
    stats: pb.StatsReply,
    epochs: Mapping[str, int],
    measured: Mapping[str, Probe | KVStoreError],
) -> None:
    """All that can be said of one node from here."""
    errors, warnings, record = node["errors"], node["warnings"], known.get(node["address"])
    node |= {"reachable": True, "node": stats.node_id, "epoch": stats.epoch, "state": stats.state}
    if record is not None and (record.node_id, record.epoch) != (stats.node_id, stats.epoch):
        errors.append(
            f"the pool's record names epoch {record.epoch} of node {record.node_id} there: wait "
            "until it is renewed, or give each node an address of its own (--listen, --advertise)"
        )
    if stats.state != "serving":
        warnings.append(f"it is {stats.state}")
    if not measured:
        warnings.append(
            "bytes to and from it were not measured: that takes a client's certificate and token, "
            "as they move for a tenant, and a node's own certificate names none"
        )
    for way, probe in measured.items():
        if isinstance(probe, Probe):
            node["transports"][way] = dataclasses.asdict(probe)
    for one in judge(measured):
        (errors if one.error else warnings).append(f"{one.transport} {one.text}")
    for contact in stats.contacts:
        _add_contact(node, contact, known, epochs)
    for ssd in stats.ssd:
        node["ssd"].append({"path": ssd.path, "files": ssd.files, "retired": ssd.retired_files})
        if ssd.retired_files:
            errors.append(
                f"{ssd.path}: {ssd.retired_files} files were retired: {ssd.cause}; mend the disk, "
                "then start the node again"
            )


def _add_contact(
    node: Said,
    contact: pb.ContactStats,
    known: Mapping[str, NodeRecord],
    epochs: Mapping[str, int],
) -> None:
    """What this node has found of another, and what is wrong with it if that one still runs."""
    node["contacts"].append(contact_facts(contact))
    # Whoever is not in a pool that is known runs no more.
    over = epochs.get(contact.node_id, None if known else contact.epoch) != contact.epoch
    for one in contact.transports:
        if one.complaint and not over:
            text = f"from there to the node at {contact.address}: {one.name} {one.complaint}"
            node["errors" if one.error else "warnings"].append(text)


def _acts_for_none(credentials: Credentials) -> bool:
    """Whether they are a node's own, of whoever a node tells its figures: clients show a token."""
    return credentials.tls is not None and not credentials.token


def _measured(address: str) -> dict[str, Probe | KVStoreError]:
    """What each transport gives that a client of this host could take."""
    tcp, host = _probed(address, "tcp")
    shm = {"shm": _probed(address, "shm")[0]} if host == host_name() else {}
    return {"tcp": tcp, **shm}


def _probed(address: str, way: str) -> tuple[Probe | KVStoreError, str]:
    """What one gives, and the host where the node says it runs."""
    # Here, as the client loads the compiled kernels, and every command would.
    from kvstore.client.connection import Link

    host = ""
    try:
        with typed_errors(address), closing(Link(address, "doctor", DEADLINE_SECONDS, way)) as link:
            host, transport = link.opened.host, link.transport
            probe: Probe = transport.probe()  # type: ignore[attr-defined]
            return probe, host
    except KVStoreError as error:
        return error, host


def _print(said: Said) -> None:
    for node in said["nodes"]:
        serves = (
            f"{node['node']}, epoch {node['epoch']}, {node['state']}" if "node" in node else "-"
        )
        print(f"{node['address']}  {serves}{', TLS' if node['tls'] else ''}")
        _print_rates("  ", node["transports"])
        for ssd in node["ssd"]:
            print(f"  ssd   {ssd['path']}: {ssd['files']} files, {ssd['retired']} retired")
        for contact in node["contacts"]:
            print(f"  to {contact['address']}, {contact['seconds_ago']:.0f} s ago")
            _print_rates("    ", contact["transports"])
        _print_complaints("  ", node)
    for gpu, why in said["host"]["gpus"].items():
        way = f"through pinned host memory: {why}" if why else "straight, as far as this host goes"
        print(f"this host: {gpu}: blocks over ucx go {way}")
    _print_complaints("this host: ", said["host"])
    _print_complaints("", said)
    wrong = sum(bool(node["errors"]) for node in said["nodes"])
    if said["nodes"]:
        print(f"{len(said['nodes'])} nodes looked at, {wrong} with errors")
    elif not said["errors"] and not said["host"]["errors"]:
        print("nothing is in the way of a node here")


def _print_rates(indent: str, transports: Mapping[str, Said]) -> None:
    for way, probe in transports.items():
        there, back = (probe[f"{one}_bytes_per_second"] / 1e9 for one in ("there", "back"))
        trip = 1e6 * probe["round_trip_seconds"]
        rates = f"there {there:.3g} GB/s, back {back:.3g} GB/s, round trip {trip:.0f} us"
        print(f"{indent}{way:<5} {rates}")


def _print_complaints(indent: str, said: Said) -> None:
    for kind in ("warnings", "errors"):
        for text in said[kind]:
            print(f"{indent}{kind[:-1].upper()}: {text}")
