"""Refuses sockets to other machines, in the tests' own process and, by sitecustomize, in its Python children.

An audit hook sees what goes through Python's socket module, whoever calls it. It does not see connections
that compiled code opens by itself; libraries that do so are told to stay offline by environment variables.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from pathlib import Path

HOOKED_FOLDER = Path(__file__).parent / "offline_site"
"""Holds only a sitecustomize.py; first on PYTHONPATH of every child process."""

attempts: list[str] = []
"""What this process tried to reach. A library may swallow the refusal; the test must not."""


class OtherMachine(ConnectionRefusedError):
    """An OSError, so that code under test behaves as on a machine without a network."""


def is_here(host: object) -> bool:
    """Loopback, wildcard and this machine's own name. A name that would need a look-up is elsewhere."""
    if isinstance(host, bytes):
        host = host.decode("utf-8", "replace")
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(str(host).split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _audit(event: str, arguments: tuple) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a path or None: unix, or already connected
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not is_here(host):
        attempts.append(f"{event} {host!r}")
        raise OtherMachine(f"tests reach no other machine: {event} {host!r}")


def refuse_other_machines() -> None:
    """For good: an audit hook cannot be taken out again."""
    sys.addaudithook(_audit)


def for_child_processes(environment: dict[str, str] | os._Environ[str]) -> None:
    """Let the Python processes that a test starts refuse them too."""
    already = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(HOOKED_FOLDER), *([already] if already else [])])
