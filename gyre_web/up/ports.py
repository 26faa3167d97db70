"""TCP ports: a taken one is replaced by a free one, and both are named to the person who asked."""

import socket


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port(host: str, wanted: int, num_tries: int = 50) -> int:
    """`wanted`, or the next free one above it, or whatever the system gives."""
    for port in range(wanted, min(wanted + num_tries, 65536)):
        if is_free(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
