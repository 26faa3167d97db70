"""`python -m environments.gateway`: serve the gateway on its sockets.

From:  settings.GATEWAY_SOCKET_DIR, settings.GATEWAY_PORT.
To:    uvicorn, on a socket of its own; `gateway.sock` is a link to a living gateway's socket.
Holds: several gateways share the directory; where the linked one dies, another takes the link within a second. One whose
       socket was removed (somebody cleaned the temporary directory) ends, because nobody can reach it; it is started again.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path
from typing import cast

import uvicorn

from environments.gateway.app import Gateway, settings

LINK = "gateway.sock"
CHECK_LINK_S = 0.5
KEEP_ALIVE_S = 3600
"""Must outlast every client's connection pool."""
SHUTDOWN_S = 2

logger = logging.getLogger(__name__)


def bind_unix(path: Path) -> socket.socket:
    if len(str(path)) > 107:
        raise SystemExit(f"The socket path {path} is longer than 107 bytes; set GYRE_RUNTIME to a shorter directory.")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    bound.bind(str(path))
    path.chmod(0o666)  # sandboxes run as other users; the key in each request is the right to call
    return bound


def bind_tcp(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def take_link(directory: Path, name: str) -> None:
    """Atomically: a connect sees the old gateway or this one, never nothing."""
    part = directory / f".{LINK}.{name}"
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    part.symlink_to(name)
    os.replace(part, directory / LINK)


async def keep_link(directory: Path, name: str) -> None:
    """Returns when this gateway's own socket is gone."""
    while True:
        await asyncio.sleep(CHECK_LINK_S)
        if not (directory / name).exists():
            return
        try:
            _, writer = await asyncio.open_unix_connection(str(directory / LINK))
            writer.close()
        except OSError:
            take_link(directory, name)


def remove_dead_sockets(directory: Path) -> None:
    for path in directory.glob("gw-*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


async def serve(gateway: Gateway, sockets: list[socket.socket]) -> bool:
    """Until it is asked to end; False: its socket was removed."""
    config = uvicorn.Config(
        gateway,
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        http="httptools",
        ws="none",
        proxy_headers=False,
        server_header=False,
        backlog=2048,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=sockets))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        take_link(gateway.socket_dir, gateway.socket_name)
    link = asyncio.create_task(keep_link(gateway.socket_dir, gateway.socket_name))
    await asyncio.wait((serving, link), return_when=asyncio.FIRST_COMPLETED)
    if is_reachable := serving.done():
        link.cancel()
    else:
        logger.error(
            "%s was removed: nobody can reach this gateway, so it ends. Keep GYRE_RUNTIME where nothing is cleaned up.",
            gateway.socket_dir / gateway.socket_name,
        )
        server.should_exit = True
    await serving
    return is_reachable


def main() -> int:
    directory = Path(settings.GATEWAY_SOCKET_DIR)
    directory.mkdir(parents=True, exist_ok=True)
    remove_dead_sockets(directory)
    gateway = Gateway(socket_dir=directory)
    own = directory / gateway.socket_name
    sockets = [bind_unix(own)]
    if settings.GATEWAY_PORT:
        sockets.append(bind_tcp(settings.GATEWAY_PORT))
    runner = asyncio.Runner(loop_factory=new_loop)
    try:
        with runner:
            is_reachable = runner.run(serve(gateway, sockets))
    finally:
        own.unlink(missing_ok=True)
    return 0 if is_reachable else 1


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast(asyncio.AbstractEventLoop, uvloop.new_event_loop())


if __name__ == "__main__":
    sys.exit(main())
