"""The tests' own fence: no other machine, neither from here nor from a child process; this machine, yes."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request

import pytest

import offline

ELSEWHERE = "192.0.2.1"  # reserved for documentation: nobody answers there


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_to_another_machine_is_refused(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as client, pytest.raises(offline.OtherMachine):
        client.connect((ELSEWHERE, 9))
    offline.attempts.clear()


def test_a_datagram_and_a_look_up_are_refused() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client, pytest.raises(offline.OtherMachine):
        client.sendto(b"x", (ELSEWHERE, 9))
    with pytest.raises(OSError, match=r"example\.org"):
        urllib.request.urlopen("http://example.org", timeout=5)
    assert len(offline.attempts) == 2
    offline.attempts.clear()


def test_a_child_process_is_refused_too() -> None:
    program = f"import socket; socket.create_connection(({ELSEWHERE!r}, 9), timeout=5)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert child.returncode != 0
    assert "tests reach no other machine" in child.stderr


def test_this_machine_may_be_reached() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address = ("localhost", server.getsockname()[1])
    with server, socket.create_connection(address, timeout=5) as client:
        assert client.getpeername()[0] == "127.0.0.1"
    left, right = socket.socketpair()
    left.close()
    right.close()
