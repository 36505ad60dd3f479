"""Running the application: in this thread until a signal, or in the background of a script or notebook."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmrl_jax.serve.app import needs_extra


if TYPE_CHECKING:
    import uvicorn

GRACE = 10
"""Seconds that answers in progress have after a stop signal."""


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes any free port. **Raises:** `ValueError` if it cannot be bound."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port is {port}; it must lie between 0, for any that is free, and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio otherwise keeps Nagle's algorithm on: 40 ms per answer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on other systems it would let two servers share one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
        return sock
    except OSError as error:
        sock.close()
        raise ValueError(f"cannot listen at {host} port {port}: {error}; name another host or port") from None


def url_of(sock: socket.socket) -> str:
    """The API's address for clients."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def _server(app: Any) -> uvicorn.Server:
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,  # uvicorn's own configuration would close the handlers of others
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
    )


def run(app: Any, sock: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then finish answers in progress. **Raises:** `KeyboardInterrupt` at the end."""
    _server(app).run(sockets=[sock])


@contextmanager
def background(app: Any, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve from a thread while the block runs.

    **Arguments:** `app`; `host`; `port`, 0 for any free port.
    **Returns:** a context whose value is the API's address, for `base_url`.
    """
    server, sock = _server(app), listen(host, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="llmrl-serve", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        yield url_of(sock)
    finally:
        server.should_exit = True
        thread.join()
        sock.close()
