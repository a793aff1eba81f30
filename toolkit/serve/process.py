"""Server processes: started tied to this one, waited for until they answer, stopped alone. It knows no server."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from toolkit import console
from toolkit.errors import ToolkitError

TETHER = Path(__file__).parents[1] / "tether.py"
POLL_S = 0.25
TELL_S = 10
"""How often a wait is reported."""
GRACE_S = 6
"""From the request to stop to the end by force."""
KILLED = "where nobody ended it, memory ran out: free some, or take a smaller file"


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy in the environment is not asked for this machine's own addresses."""


class Server:
    """A process that answers HTTP on loopback."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def wait_until_healthy(self, url: str, *, limit_s: float) -> None:
        """Return once `url` answers with success. ToolkitError where the process ends before, or takes too long."""
        started = told = time.monotonic()
        while not _answers(url):
            self.check()
            now = time.monotonic()
            if now - started > limit_s:
                raise ToolkitError(f"{self.name} did not answer within {limit_s:.0f} s", where=url)
            if now - told >= TELL_S:
                console.note(f"waiting for {self.name}: {now - started:.0f} s")
                told = now
            time.sleep(POLL_S)

    def check(self) -> None:
        """ToolkitError, with the last words of the process, where it has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            words = self._last_words()
            hint = KILLED if code == -signal.SIGKILL else None
            raise ToolkitError(f"{self.name} {how}" + (f". Its last words:\n{words}" if words else ""), hint=hint)

    def stop(self) -> None:
        """Ask it to end, and what it started; insist after `GRACE_S`, or at once at a second Ctrl-C."""
        try:
            self._signal(signal.SIGTERM)
            self._process.wait(GRACE_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the group is gone
            os.killpg(self._process.pid, number)

    def _last_words(self, count: int = 12) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-count:])


@contextmanager
def running(
    name: str,
    module: Sequence[str],
    *,
    log: Path,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[Server]:
    """`python -m MODULE …` while the block runs, in a session of its own: Ctrl-C reaches this process alone, which stops it.

    `log` gets what it prints.
    """
    command = [python, "-P", str(TETHER), *module]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    server = Server(name, process, log)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def until_stopped() -> Iterator[None]:
    """Ctrl-C, SIGTERM or a closed terminal end the block; that is how servers are meant to end, so it is no error.

    What is ignored already stays so: under nohup a closed terminal ends nothing.
    """
    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, signal.default_int_handler) for number in heard}
    try:
        yield
    except KeyboardInterrupt:
        console.note("stopped")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_while_running(servers: Sequence[Server]) -> None:
    """Until one of them ends, which is an error."""
    while True:
        for server in servers:
            server.check()
        time.sleep(POLL_S)


def free_port(host: str, port: int) -> int:
    """`port`, or for 0 one that is free. ToolkitError where it cannot be had, or the host is none of this machine's."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family) as probe:
            return probe.getsockname()[1]
    except (OSError, UnicodeError) as error:
        what, hint = _why_not(host, port, error)
        raise ToolkitError(what, where=f"{host}:{port}", hint=hint) from error


def _why_not(host: str, port: int, error: OSError | UnicodeError) -> tuple[str, str]:
    """In words, and the way out."""
    other = "another one: --port NUMBER, or --port 0 for any that is free"
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    if number == errno.EADDRINUSE:
        return f"port {port} is taken: another program listens there", other
    if number in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be opened by this user", other
    if number in (None, errno.EADDRNOTAVAIL):
        return (
            f"{host} is no address of this machine",
            "--host 127.0.0.1: this machine alone; --host 0.0.0.0: the network",
        )
    return f"port {port} cannot be opened: {os.strerror(number)}", other


def _answers(url: str) -> bool:
    try:
        with _direct.open(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, HTTPException):  # urllib's errors among them: not there yet, not ready, or no web server
        return False


def post_json(url: str, body: Any, *, token: str = "") -> Any:
    """The answer to a request of this process to a server on this machine. ToolkitError where it refuses."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with _direct.open(request, timeout=60) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError) as error:
        raise ToolkitError(f"no answer to be used: {error}", where=url) from error
