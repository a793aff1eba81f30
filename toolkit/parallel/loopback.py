"""Where the processes of one machine meet: on loopback. Torch's own store listens on every interface, and asks for no password."""

from __future__ import annotations

import socket
from typing import Any

BACKEND = "toolkit-loopback"
"""Its name among torch's ways to meet."""
ADDRESS = "127.0.0.1"


def register() -> None:
    """Make it known to torch, once."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(BACKEND, _handler)


def _handler(parameters: Any) -> Any:
    """Torch's handler for machines that are known beforehand, with a store on a socket that was opened here."""
    from datetime import timedelta

    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class LoopbackRendezvous(StaticTCPRendezvous):
        def get_backend(self) -> str:
            return BACKEND

    listener = socket.create_server((ADDRESS, 0))
    port, wait_s = listener.getsockname()[1], int(parameters.config["timeout"])
    handler = LoopbackRendezvous(ADDRESS, port, 0, 1, parameters.run_id, wait_s)
    handler._store = TCPStore(
        ADDRESS, port, 1, True, timedelta(seconds=wait_s), multi_tenant=True, master_listen_fd=listener.detach()
    )
    return handler
