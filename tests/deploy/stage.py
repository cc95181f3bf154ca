"""The services of compose.yaml as processes of this machine: the same commands, with addresses,
volumes and names as they are here.

Each network of a service is an address of loopback's own, at which its ports are free, and each
volume a folder. Nothing else is changed, so what starts here would start there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvstore.cli.parent import environment
from tests.deploy.files import COMPOSE, compose

SECONDS = 120.0
_BIN = Path(sys.executable).parent


class Stage:
    """Close it, or its processes stay."""

    def __init__(self, folder: Path, etcd: str, given: Mapping[str, str]) -> None:
        self._folder, self._etcd, self._given = folder, etcd, given
        self._model = given["MODEL"]
        self.services: dict[str, Any] = compose(given)["services"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        owners = [name for name, one in self.services.items() if "network_mode" not in one]
        self._addresses = {name: f"127.0.0.{11 + i}" for i, name in enumerate(owners)}

    def elsewhere(self, folder: Path) -> Stage:
        """The same with volumes of its own."""
        return Stage(folder, self._etcd, self._given)

    def address_of(self, name: str) -> str:
        owner = self.services[name].get("network_mode", name).removeprefix("service:")
        return self._addresses[owner]

    def init(self) -> None:
        """As the service of that name does it, once more if it was done."""
        service = self.services["init"]
        tls = self._folder / "tls"
        tls.mkdir(exist_ok=True)
        for source, target in self._volumes(service):
            if target.startswith("/etc/moonpool/tls/"):
                link = tls / Path(target).name
                if not link.is_symlink():
                    link.symlink_to(source)
        names = list(self._addresses.values())
        script = [COMPOSE.parent / "init.sh", self._etcd, tls, *names]
        ran = subprocess.run(
            ["sh", *map(str, script)], env=self._environment({}), capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr

    def start(self, name: str) -> None:
        service = self.services[name]
        arguments = [self._here(name, str(one)) for one in service["command"]]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [_BIN / "moonpool", *arguments],
                env=self._environment(self.environment_of(name)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def environment_of(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment", {})
        return {key: self._here(name, value) for key, value in given.items()}

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of Moonpool's within a service."""
        return subprocess.run(
            [_BIN / "moonpool", *(self._here(name, one) for one in arguments)],
            env=self._environment(self.environment_of(name)),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def wait_healthy(self, name: str) -> None:
        """As Compose would: by the service's own check."""
        test = self.services[name]["healthcheck"]["test"]
        deadline = time.monotonic() + SECONDS
        while (asked := self.run(name, *map(str, test[2:]))).returncode:
            assert self._processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, asked.stderr + self.log(name)
            time.sleep(0.2)

    def stop(self, name: str) -> int:
        """SIGTERM, and as long as Compose would wait."""
        process = self._processes.pop(name)
        process.terminate()
        grace = str(self.services[name]["stop_grace_period"])
        return process.wait(float(grace.removesuffix("s")))

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2_000:]

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def volume(self, name: str) -> Path:
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return path

    def _volumes(self, service: Mapping[str, Any]) -> list[tuple[Path, str]]:
        found = []
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            if source == self._model:
                found.append((Path(source), target))
            elif source[0] not in "./":
                found.append((self.volume(source), target))
        return sorted(found, key=lambda one: -len(one[1]))

    def _here(self, name: str, text: str) -> str:
        """A word of a service's command or environment, as it is on this machine."""
        text = text.replace("http://etcd:2379", self._etcd)
        for source, target in self._volumes(self.services[name]):
            text = text.replace(target, str(source))
        for every in ("0.0.0.0:", "127.0.0.1:"):
            if self._etcd not in text:
                text = text.replace(every, f"{self.address_of(name)}:")
        for other, address in self._addresses.items():
            text = text.replace(f"={other}:", f"={address}:")
            text = text.replace(f"--advertise={other}", f"--advertise={address}")
        return text

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        path = f"{_BIN}:{os.environ['PATH']}"
        home = self.volume("home")
        return environment() | {"PATH": path, "MOONPOOL_DIR": str(home)} | dict(given)
