"""What the Kubernetes objects promise of every pod, and of what they leave to each other."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.config import TlsConfig
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.tls import channel_credentials, data_client, data_server
from tests.deploy.files import containers, kubernetes_runs, objects, pods
from tests.nodes import NodeProcess, short_directory

PODS = dict(pods())
CONTAINERS = [
    pytest.param(one, id=f"{name} {one['name']}")
    for name, pod in PODS.items()
    for one in containers(pod)
]
DOMAIN = "moonpool-node.moonpool.svc.cluster.local"


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_more_than_it_needs(name: str) -> None:
    pod = PODS[name]
    assert pod["automountServiceAccountToken"] is False
    security = pod["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == 10001 == security["fsGroup"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [one for one in pod["volumes"] if "hostPath" in one]


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_has_no_more_than_it_needs(container: dict[str, Any]) -> None:
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"], "one that leaks ends alone"
    for one in container["volumeMounts"]:
        if one["name"].endswith("tls"):
            assert one["readOnly"]


@pytest.mark.parametrize("name", PODS)
def test_volumes_that_are_mounted_are_there(name: str) -> None:
    pod = PODS[name]
    claims = [
        claim["metadata"]["name"]
        for one in objects()
        if one["metadata"]["name"] == name
        for claim in one["spec"].get("volumeClaimTemplates", ())
    ]
    mounted = {mount["name"] for one in containers(pod) for mount in one["volumeMounts"]}
    assert mounted == {*claims, *(one["name"] for one in pod["volumes"])}


@pytest.mark.parametrize("name", PODS)
def test_what_is_compiled_in_a_container_is_kept_there_and_by_no_other_process(name: str) -> None:
    """Its root filesystem is read-only, and what is found in a cache is run."""
    ours = [one for one in containers(PODS[name]) if one["image"].startswith("moonpool")]
    kept = {
        mount["name"]: one["name"]
        for one in ours  # the doctor before a node is of one mind with it
        for mount in one["volumeMounts"]
        if mount["mountPath"] == "/var/cache/moonpool" and not mount.get("readOnly")
    }
    running = [one["name"] for one in ours if one["name"] != "doctor"]
    assert sorted(kept.values()) == sorted(running)
    volumes = {one["name"]: one for one in PODS[name]["volumes"]}
    assert all("emptyDir" in volumes[one] for one in kept)


def test_secrets_are_named_and_never_held() -> None:
    assert not [one for one in objects() if one["kind"] == "Secret"]


def test_a_node_has_as_long_to_end_as_its_drain_may_take() -> None:
    drains = [run for run in kubernetes_runs() if run.arguments[0] == "drain"]
    assert len(drains) == 2
    for run in drains:
        seconds = int(run.arguments[run.arguments.index("--seconds") + 1])
        grace = PODS[run.where.split()[0]]["terminationGracePeriodSeconds"]
        assert seconds + 30 <= grace


def test_copies_are_kept_apart_by_machine_and_not_by_pod() -> None:
    """Several pods of one machine end with it, and each is a host by itself."""
    nodes = [run for run in kubernetes_runs() if run.arguments[0] == "node"]
    assert len(nodes) == 2
    for run in nodes:
        assert "--label=host=spec-nodeName" in run.arguments
        assert run.environment["MOONPOOL_HOST"] == "metadata-uid"


def test_every_workload_may_lose_one_pod_at_a_time() -> None:
    budgets = {
        one["metadata"]["name"]: one["spec"]
        for one in objects()
        if one["kind"] == "PodDisruptionBudget"
    }
    assert budgets.keys() == PODS.keys()
    for one in objects():
        if one["metadata"]["name"] in PODS and "template" in one.get("spec", {}):
            assert budgets[one["metadata"]["name"]]["selector"] == one["spec"]["selector"]
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def ports_open_to(component: str) -> set[int]:
    """That some policy lets somebody in by."""
    found: set[int] = set()
    for one in objects():
        if one["kind"] != "NetworkPolicy":
            continue
        chosen = one["spec"]["podSelector"]
        names = [chosen.get("matchLabels", {}).get("app.kubernetes.io/component")]
        names += [name for each in chosen.get("matchExpressions", ()) for name in each["values"]]
        if component in names:
            rules = one["spec"].get("ingress", ())
            found |= {port["port"] for rule in rules for port in rule["ports"]}
    return found


@pytest.mark.parametrize("name", PODS)
def test_what_a_pod_serves_is_what_is_open_to_it(name: str) -> None:
    served = {
        port["containerPort"] for one in containers(PODS[name]) for port in one.get("ports", ())
    }
    assert served == ports_open_to(name.removeprefix("moonpool-"))


# Names of pods in certificates


@pytest.fixture
def starred(tmp_path: Path) -> tuple[TlsConfig, TlsConfig]:
    """A node's certificate as the guide has it made, and a client's."""
    authority, day = Authority.make(tmp_path, datetime.timedelta(days=1)), datetime.timedelta(1)
    node = authority.sign(Holder(Role.NODE, "pool", ("localhost", f"*.{DOMAIN}")), day)
    return node, authority.sign(Holder(Role.CLIENT, "engine", ()), day)


@pytest.mark.parametrize(
    ("name", "believed"),
    [(f"moonpool-node-0.{DOMAIN}", True), (DOMAIN, False), (f"a.b.{DOMAIN}", False)],
)
def test_one_certificate_is_that_of_each_pod_for_blocks(
    starred: tuple[TlsConfig, TlsConfig], name: str, believed: bool
) -> None:
    server, client = starred
    ours, theirs = socket.socketpair()
    served = threading.Thread(target=handshake, args=(data_server(server), theirs))
    served.start()
    try:
        with data_client(client).wrap_socket(ours, server_hostname=name):
            assert believed
    except ssl.SSLCertVerificationError:
        assert not believed
    finally:
        served.join()


def handshake(context: ssl.SSLContext, peer: socket.socket) -> None:
    try:
        context.wrap_socket(peer, server_side=True).close()
    except (ssl.SSLError, ConnectionError):
        peer.close()


def test_one_certificate_is_that_of_each_pod_for_calls(
    starred: tuple[TlsConfig, TlsConfig],
) -> None:
    server, client = starred
    with short_directory() as place:
        node = NodeProcess(place, tls=server)
        try:
            node.start()
            for name, believed in ((f"moonpool-node-2.{DOMAIN}", True), (DOMAIN, False)):
                with grpc.secure_channel(
                    node.address,
                    channel_credentials(client),
                    [("grpc.ssl_target_name_override", name)],
                ) as channel:
                    call = health_pb2_grpc.HealthStub(channel).Check
                    assert answered(call) is believed
        finally:
            node.close()


def answered(call: Any) -> bool:
    try:
        call(health_pb2.HealthCheckRequest(), timeout=10)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return False
    return True


def test_vllm_says_how_much_of_a_prompt_was_found_or_there_is_no_hit_rate() -> None:
    [engine] = [one for pod in PODS.values() for one in containers(pod) if one["name"] == "vllm"]
    assert "--enable-prompt-tokens-details" in engine["args"]
