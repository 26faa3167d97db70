"""The sandbox's way to its filtering proxy: bytes of the loopback, passed through a unix socket, nothing else.

From:  whatever in the sandbox obeys http_proxy; started by supervisor.py with the listening socket.
To:    the proxy of this sandbox, which decides what may pass (environments.images or whoever launched it).
Holds: one connection here is one connection there; both end together.
Never: looks into the bytes, reaches anything but that socket.
"""

import contextlib
import socket
import sys
import threading

PROXY_SOCKET = "/gyre/egress/proxy.sock"
MAX_CONNECTIONS = 64


def serve(listener: socket.socket, proxy: str) -> None:
    threading.stack_size(256 * 1024)
    slots = threading.Semaphore(MAX_CONNECTIONS)
    while True:
        slots.acquire()
        client, _ = listener.accept()
        threading.Thread(target=serve_client, args=(client, proxy, slots), daemon=True).start()


def serve_client(client: socket.socket, proxy: str, slots: threading.Semaphore) -> None:
    try:
        with client, socket.socket(socket.AF_UNIX) as upstream, contextlib.suppress(OSError):
            upstream.connect(proxy)
            back = threading.Thread(target=copy, args=(upstream, client), daemon=True)
            back.start()
            copy(client, upstream)
            back.join()
    finally:
        slots.release()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Until the source has no more; the target is told so."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *(sys.argv[2:3] or [PROXY_SOCKET]))
