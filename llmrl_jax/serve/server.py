"""Running the application: in this thread until a signal, or in the background of a script or notebook."""

from __future__ import annotations

import asyncio
import ipaddress
import math
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

GRACE = 2.0
"""Seconds that answers in progress have after a stop signal. Then they end with an error."""
CUT = 0.5
"""Seconds after `GRACE` when connections that are still open are cut."""
HEAD_SECONDS = 10.0
"""Seconds for a request's head, from the connection or the previous answer."""
CONNECTIONS = 512
"""Open connections; further ones are closed at once."""


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket with an address, which does not accept connections yet; port 0 takes any free port.

    **Raises:** `ValueError` if it cannot be bound."""
    if not 0 <= port < 2**16:
        raise ValueError(f"port is {port}; it must lie between 0, for any that is free, and 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio otherwise keeps Nagle's algorithm on: 40 ms per answer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on other systems it would let two servers share one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        return sock
    except OSError as error:
        sock.close()
        raise _listen_error(host, port, error) from None


def listen(host: str | socket.socket, port: int = 0) -> socket.socket:
    """A socket that accepts connections: that of `bind`, or a new one. **Raises:** as `bind`."""
    sock = bind(host, port) if isinstance(host, str) else host
    try:
        sock.listen(128)
        return sock
    except OSError as error:  # another process has opened the same port since it was bound
        address = sock.getsockname()
        sock.close()
        raise _listen_error(address[0], address[1], error) from None


def _listen_error(host: str, port: int, error: OSError) -> ValueError:
    return ValueError(f"cannot listen at {host} port {port}: {error}; name another host or port")


def url_of(sock: socket.socket) -> str:
    """The API's address for clients."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def check_extra() -> None:
    """**Raises:** `ModuleNotFoundError` without the extra `serve`, with the command that installs it."""
    try:
        import h11  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error


def _server(app: Any) -> uvicorn.Server:
    check_extra()
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        """uvicorn's, with a limit on connections and on the time for a request's head."""

        _head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > CONNECTIONS:
                transport.abort()
            else:
                self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._expect_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget_head()

        def _expect_head(self) -> None:
            """The clock runs between two requests, whatever arrives meanwhile."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget_head()
            elif self._head is None:
                self._head = self.loop.call_later(HEAD_SECONDS, self._no_head)

        def _forget_head(self) -> None:
            if self._head is not None:
                self._head.cancel()
                self._head = None

        def _no_head(self) -> None:
            if self.transport.is_closing():
                return
            if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
                self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    class Server(uvicorn.Server):
        """uvicorn's, which ends answers in progress with an error before it cuts them."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            def cut() -> None:
                for connection in list(self.server_state.connections):
                    connection.transport.abort()

            loop = asyncio.get_running_loop()
            timers = [loop.call_later(GRACE, app.state.stop), loop.call_later(GRACE + CUT, cut)]
            await super().shutdown(sockets)
            for timer in timers:
                timer.cancel()

    return Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,  # uvicorn's own configuration would close the handlers of others
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(GRACE + CUT),
        )
    )


def run(app: Any, sock: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then finish answers in progress, or end them with an error after `GRACE` seconds.
    **Raises:** `KeyboardInterrupt` at the end."""
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
