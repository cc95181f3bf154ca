"""A process goes on calling when its token or its certificate was renewed where it is named."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.client.reporter import Reporter
from kvstore.config import Credentials, TlsConfig
from kvstore.errors import ConfigError, Unauthenticated, Unavailable
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.identity import TOKEN_KEY
from kvstore.rpc.lasting import LastingStub
from kvstore.rpc.status import ERROR_KEY
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc
from tests.auth.people import DAY
from tests.nodes import eventually

SECONDS = 20.0
ASKED = pb.CrewsRequest()


class Guarded(conductor_pb2_grpc.ConductorServicer):
    """Answers whoever shows the token that counts now."""

    def __init__(self) -> None:
        self.good, self.asked = "first", 0
        self.heard: list[pb.ReportRequest] = []
        self.held = threading.Event()  # answers wait for it
        self.held.set()

    def Crews(self, request: Any, context: Any) -> Any:
        self._look(context)
        return pb.CrewsReply()

    def Report(self, requests: Any, context: Any) -> Any:
        self._look(context)
        self.heard.extend(requests)
        return pb.ReportReply()

    def _look(self, context: Any) -> None:
        self.asked += 1
        shown = dict(context.invocation_metadata()).get(TOKEN_KEY, "").rpartition(" ")[2]
        self.held.wait(SECONDS)
        if shown != self.good:
            context.set_trailing_metadata(((ERROR_KEY, "Unauthenticated"),))
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "not this token")


class House:
    """A server over TLS, and what a process shows it, in files that its environment names."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._authorities = [Authority.make(folder / name, DAY) for name in ("old", "new")]
        self.service, self._folder, self._server = Guarded(), folder, None
        self.address = self._serve(0)
        self.give(0)
        self.token = folder / "token"
        self.token.write_text("first\n")
        for name in ("ca", "cert", "key"):
            patch.setenv(f"MOONPOOL_TLS_{name.upper()}", str(folder / name))
        patch.setenv("MOONPOOL_TOKEN_FILE", str(self.token))

    def give(self, authority: int) -> None:
        """The files are one's of that authority."""
        ours = self._authorities[authority].sign(Holder(Role.CLIENT, "engine"), DAY)
        for name in ("ca", "cert", "key"):
            new = self._folder / f"{name}.new"
            shutil.copyfile(getattr(ours, name), new)
            os.replace(new, self._folder / name)

    def believe(self, authority: int) -> None:
        """The server is of that authority now, where it was."""
        self.stop()
        self._serve(authority)

    def stop(self) -> None:
        assert self._server is not None
        self._server.stop(None).wait()

    def _serve(self, authority: int) -> str:
        host = Holder(Role.CONDUCTOR, "c", ("127.0.0.1",))
        tls: TlsConfig = self._authorities[authority].sign(host, DAY)
        ca, cert, key = (Path(one).read_bytes() for one in (tls.ca, tls.cert, tls.key))
        self._server = grpc.server(ThreadPoolExecutor(4))
        conductor_pb2_grpc.add_ConductorServicer_to_server(self.service, self._server)
        shown = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
        where = getattr(self, "address", "127.0.0.1:0")
        port = self._server.add_secure_port(where, shown)
        self._server.start()
        return f"127.0.0.1:{port}"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    made = House(tmp_path, monkeypatch)
    yield made
    made.stop()


def crews(stub: Any) -> Any:
    return stub.Crews(ASKED, timeout=SECONDS)


@pytest.fixture
def caller(house: House) -> Iterator[LastingStub]:
    made = LastingStub(house.address, conductor_pb2_grpc.ConductorStub)
    made.ask(crews)
    yield made
    made.close()


def test_a_token_that_was_renewed_is_shown_by_the_call_that_was_refused(
    house: House, caller: LastingStub
) -> None:
    house.service.good = "second"
    house.token.write_text("second\n")
    caller.ask(crews)
    assert house.service.asked == 3, "once before, and twice now"


def test_a_token_that_nobody_renewed_is_refused_at_once(house: House, caller: LastingStub) -> None:
    house.service.good = "second"
    before = caller.now
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            caller.ask(crews)
    assert house.service.asked == 4 and caller.now is before


def test_a_certificate_that_was_renewed_is_shown_when_the_one_before_counts_no_more(
    house: House, caller: LastingStub
) -> None:
    house.believe(1)
    with pytest.raises(Unavailable):
        caller.ask(crews)
    house.give(1)
    caller.ask(crews)


def test_files_that_cannot_be_read_for_a_while_change_nothing(
    house: House, caller: LastingStub
) -> None:
    house.service.good = "second"
    house.token.unlink()
    with pytest.raises(Unauthenticated):
        caller.ask(crews)
    house.token.write_text("second\n")
    caller.ask(crews)


def test_what_others_ask_meanwhile_is_answered(house: House, caller: LastingStub) -> None:
    house.service.held.clear()
    answers = []
    other = threading.Thread(target=lambda: answers.append(caller.ask(crews)))
    other.start()
    eventually(lambda: house.service.asked == 2)
    house.token.write_text("second\n")
    assert caller.renewed(caller.now)
    house.service.held.set()
    other.join(SECONDS)
    assert len(answers) == 1


def test_an_engine_goes_on_to_report_with_a_token_that_was_renewed(house: House) -> None:
    house.service.good = "second"
    with closing(Reporter(pb.ReportRequest.Engine(engine_id="one"), [house.address])):
        eventually(lambda: house.service.asked > 1)
        assert not house.service.heard, "it is refused, and tries again"
        house.token.write_text("second\n")
        eventually(lambda: house.service.heard)


def test_an_engine_whose_token_cannot_be_read_when_it_starts_hears_of_it(house: House) -> None:
    house.token.unlink()
    with pytest.raises(ConfigError, match=str(house.token)):
        Reporter(pb.ReportRequest.Engine(engine_id="one"), [house.address])


def test_what_is_given_and_not_named_by_the_environment_stays(house: House) -> None:
    given = Credentials.of_environment()
    caller = LastingStub(house.address, conductor_pb2_grpc.ConductorStub, given)
    house.service.good = "second"
    house.token.write_text("second\n")
    with pytest.raises(Unauthenticated):
        caller.ask(crews)
    caller.close()
