"""Running the application: in this thread until it is told to stop, or beside what a script or notebook does."""

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
"""Seconds that answers under way have left when the server is told to stop."""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0 takes any that is free. **Raises:** `ValueError` where it cannot be."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port is {port}; it must lie between 0, for any that is free, and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, or asyncio leaves Nagle's algorithm on: 40 ms for each answer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two servers have one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)
        return sock
    except OSError as error:
        sock.close()
        raise ValueError(f"cannot listen at {host} port {port}: {error}; name another host or port") from None


def url_of(sock: socket.socket) -> str:
    """Where a client finds the API."""
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
            log_config=None,  # its own would close the handlers that others have set up
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
    )


def run(app: Any, sock: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then let answers under way end. **Raises:** `KeyboardInterrupt` at the end."""
    _server(app).run(sockets=[sock])


@contextmanager
def background(app: Any, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread while the block runs.

    **Arguments:** `app`; `host`; `port`, 0 for any that is free.
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
