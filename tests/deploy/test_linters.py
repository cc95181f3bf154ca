"""The files of deploy/ pass the linters of whoever reads them for real."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvstore.gateway.events import FIRST_SECONDS
from kvstore.telemetry import BY_PROCESS
from tests.deploy.files import BASE, COMPOSE, DEPLOY, UNITS, objects
from tests.etcd import free_port
from tests.nodes import eventually
from tests.tree import ROOT

KUBERNETES = ("1.30", "1.33", "1.36")  # the oldest that starts a node beside its engine, and later
EXPOSURE_MAX = 20  # tenths: below 2 systemd says OK


def installed(name: str, package: str) -> str:
    """Where a command is: in our environment, or the system's."""
    ours = Path(sys.executable).parent / name
    found = str(ours) if ours.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: {package}")
    return found


def clean(*command: object, cwd: Path = ROOT) -> str:
    ran = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


DEV = "pip install -e '.[dev]'"


def test_yaml() -> None:
    clean(installed("yamllint", DEV), "--strict", DEPLOY)


def test_images() -> None:
    files = sorted((DEPLOY / "image").glob("*Dockerfile"))
    assert len(files) == 2
    clean(installed("hadolint", DEV), *files)


def test_compose() -> None:
    tool = installed("check-jsonschema", DEV)
    clean(tool, "--builtin-schema", "vendor.compose-spec", COMPOSE)


def test_scripts() -> None:
    tool = installed("shellcheck", "apt-get install shellcheck")
    clean(tool, *DEPLOY.rglob("*.sh"))


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=DEV)
    for one in objects():
        validate.validate(one, version, strict=True)


def test_that_check_can_fail() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=DEV)
    wrong = next(one for one in objects() if one["kind"] == "StatefulSet")
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("folder", ["base", "monitoring"])
def test_kustomize_puts_it_together(folder: str) -> None:
    tool = installed("kubectl", "it is in Kubernetes' own packages")
    made = list(yaml.safe_load_all(clean(tool, "kustomize", DEPLOY / "kubernetes" / folder)))
    kinds = [one["kind"] for one in made]
    assert kinds.count("StatefulSet") == 3 and kinds.count("Deployment") == 1
    assert kinds.count("ServiceMonitor") == (2 if folder == "monitoring" else 0)
    for one in made:
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == "moonpool"


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_systemd(unit: Path, tmp_path: Path) -> None:
    tool = installed("systemd-analyze", "apt-get install systemd")
    # It asks whether what is started is there.
    text = unit.read_text().replace("/opt/moonpool/bin/moonpool", "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text)
    assert clean(tool, "verify", copy) == ""
    clean(tool, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", copy)


def test_prometheus() -> None:
    tool = installed("promtool", "apt-get install prometheus")
    said = clean(tool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
    assert "rules found" in said


def test_alerts_are_of_metrics_that_there_are() -> None:
    told = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    expressions = " ".join(rule["expr"] for group in told["groups"] for rule in group["rules"])
    listed = {one.exposed for metrics in BY_PROCESS.values() for one in metrics.values()}
    named = set(re.findall(r"moonpool_\w+", expressions))
    assert named and named <= listed, named - listed


def proxy(folder: Path, port: int) -> Path:
    """Its configuration as the pod has it, with everything in a folder; without certificates."""
    text = (BASE / "nginx.conf").read_text().replace("listen 8443", f"listen 127.0.0.1:{port}")
    text = text.replace("/tmp/", f"{folder}/").replace("/etc/moonpool/tls", str(folder))
    (folder / "nginx.conf").write_text(text)
    return folder / "nginx.conf"


def certified(folder: Path) -> str:
    """A new certificate in the place of the proxy's, and what callers see of it."""
    clean(
        *(installed("openssl", "apt-get install openssl"), "req", "-x509", "-newkey", "rsa:2048"),
        *("-nodes", "-subj", "/CN=a", "-keyout", folder / "new.key", "-out", folder / "new.crt"),
        cwd=folder,
    )
    for name in ("key", "crt"):
        (folder / f"new.{name}").replace(folder / f"tls.{name}")
    return (folder / "tls.crt").read_text()


def test_proxy(tmp_path: Path) -> None:
    tool = installed("nginx", "apt-get install nginx-light")
    certified(tmp_path)
    clean(tool, "-t", "-q", "-c", proxy(tmp_path, 8443))


def test_the_proxy_has_as_many_workers_on_whatever_host() -> None:
    """Each takes some MB of the 128 that its pod gives it, and hosts with GPUs have 200 cores."""
    (workers,) = re.findall(r"^worker_processes (\w+);", (BASE / "nginx.conf").read_text(), re.M)
    assert workers.isdecimal() and int(workers) <= 4


def test_the_proxy_waits_for_an_answer_as_long_as_the_gateway_does() -> None:
    """One that is no stream says nothing before it is whole."""
    text = (BASE / "nginx.conf").read_text()
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", text)
    assert int(seconds) > FIRST_SECONDS


def test_a_renewed_certificate_is_shown_by_a_proxy_that_runs(tmp_path: Path) -> None:
    """A secret changes under the pod, and nobody restarts it."""
    tool, port = installed("nginx", "apt-get install nginx-light"), free_port()
    first, conf = certified(tmp_path), proxy(tmp_path, port)
    # As one user, who in a pod is not root: workers read what the master does.
    as_one = "daemon off;" + (" user root;" if os.geteuid() == 0 else "")
    process = subprocess.Popen([tool, "-c", conf, "-g", as_one], stderr=subprocess.PIPE)
    try:
        assert eventually(lambda: shown_at(port)) == first
        second = certified(tmp_path)
        assert second != first and shown_at(port) == second
    finally:
        process.terminate()
        process.communicate(timeout=10)


def shown_at(port: int) -> str:
    try:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    except OSError:
        return ""
