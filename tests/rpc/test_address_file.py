"""A node's address file: there while the node runs, believed only then, read by its user alone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.errors import Unavailable
from kvstore.rpc.address_file import NAME, AddressFile, address_in
from kvstore.rpc.locator import InDirectory

ADDRESS, NODE_ID = "127.0.0.1:7410", "a-node"


def test_what_a_node_says_is_found_until_it_ends(tmp_path: Path) -> None:
    file = AddressFile(tmp_path, ADDRESS, NODE_ID)
    assert InDirectory(tmp_path).find() == address_in(tmp_path) == ADDRESS
    facts = json.loads((tmp_path / NAME).read_text())
    assert facts == {"address": ADDRESS, "node_id": NODE_ID, "pid": os.getpid()}
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    file.close()
    assert address_in(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_readers_do_not_hinder_each_other_nor_the_node(tmp_path: Path) -> None:
    first = AddressFile(tmp_path, ADDRESS, NODE_ID)
    assert [address_in(tmp_path) for _ in range(5)] == [ADDRESS] * 5
    first.close()
    second = AddressFile(tmp_path, "127.0.0.1:2", NODE_ID)
    assert address_in(tmp_path) == "127.0.0.1:2"
    second.close()


def test_what_a_killed_node_left_is_not_believed_and_the_next_replaces_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from kvstore.rpc.address_file import AddressFile\n"
        "held = AddressFile(Path(sys.argv[1]), '127.0.0.1:1', 'gone'); print('held', flush=True)\n"
        "time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert address_in(tmp_path) == "127.0.0.1:1"
        holder.send_signal(signal.SIGSTOP)
        assert address_in(tmp_path) == "127.0.0.1:1", "a stopped node is there still"
        holder.kill()
    assert (tmp_path / NAME).exists()
    with pytest.raises(Unavailable, match="start one"):
        InDirectory(tmp_path).find()
    file = AddressFile(tmp_path, ADDRESS, NODE_ID)
    assert address_in(tmp_path) == ADDRESS
    file.close()


def test_a_half_made_file_of_a_killed_node_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / NAME).with_suffix(".new").write_text("{")
    file = AddressFile(tmp_path, ADDRESS, NODE_ID)
    assert address_in(tmp_path) == ADDRESS
    file.close()


def test_who_never_ran_a_node_is_told_so_in_other_words(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no node has run in"):
        InDirectory(tmp_path).find()
    with pytest.raises(Unavailable, match="no node has run in"):
        InDirectory(tmp_path / "absent").find()
    (tmp_path / "node.id").touch()
    with pytest.raises(Unavailable, match="no node serves from"):
        InDirectory(tmp_path).find()


def test_what_cannot_be_read_is_a_node_that_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(NAME)  # which no user can follow
    with pytest.raises(Unavailable, match=r"node\.json cannot be read \(Too many levels of"):
        InDirectory(tmp_path).find()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can call as somebody else")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_the_node_of_another_user_is_one_that_cannot_be_reached(tmp_path: Path, mode: int) -> None:
    code = (
        "import os; from pathlib import Path\n"
        "from kvstore.errors import Unavailable\n"
        "from kvstore.rpc.locator import InDirectory\n"
        "os.setuid(65534)\n"
        "try: InDirectory(Path()).find()\n"
        "except Unavailable as error: print(error)"
    )
    file = AddressFile(tmp_path, ADDRESS, NODE_ID)
    tmp_path.chmod(mode)
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.stdout == (
        "node.json cannot be read (Permission denied): a node serves callers of its own user "
        "there; call as that user\n"
    ), ran.stderr
    file.close()
