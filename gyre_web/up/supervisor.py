"""All of Gyre on one machine: start in order, restart what dies, stop in order, leave nothing behind.

From:  `manage.py up`, `manage.py demo`, and tests (`running_system`).
To:    the processes of gyre_web.up.parts over embedded or given services; their output, prefixed, on one stream.
Holds: one part's death ends no other; what an earlier supervisor left when it was killed is ended first.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TextIO

from django.conf import settings

from gyre_web.up.parts import Part, build_parts, part_environment
from gyre_web.up.processes import die_with_parent, end_group, is_same_process, start_time
from gyre_web.up.services import EmbeddedPostgres, EmbeddedValkey, ServiceError, service_directory

RESTART_PAUSE_S = (0.2, 1.0, 3.0, 10.0)
CALM_AFTER_S = 60.0
RETRY_S = 1.0
COLOURS = ("36", "32", "33", "35", "34", "96", "92")


class UpError(RuntimeError):
    """Gyre cannot start here; the message says why and what to do."""


@dataclass(kw_only=True)
class Running:
    part: Part
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    num_deaths: int = 0


@dataclass(kw_only=True)
class Supervisor:
    host: str = "127.0.0.1"
    port: int = 8000
    only: frozenset[str] | None = None
    num_rollouts: int = 32
    output: TextIO = field(default_factory=lambda: sys.stderr)
    log_path: Path | None = None
    urls: dict[str, str] = field(default_factory=dict, init=False)
    running: dict[str, Running] = field(default_factory=dict, init=False)
    stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _services: list[EmbeddedPostgres | EmbeddedValkey] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _log: IO[str] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def record(self) -> Path:
        return Path(settings.DATA_DIR) / "up.json"

    # Starting

    def start(self) -> None:
        """Services, migrations, parts. Raises UpError (already running) or ServiceError."""
        data_dir = Path(settings.DATA_DIR)
        data_dir.mkdir(parents=True, exist_ok=True)
        if self.log_path:
            self._log = self.log_path.open("a", buffering=1)
        self._end_leftovers()
        make_own_directory(Path(settings.RUNTIME_DIR), 0o711)
        make_own_directory(Path(settings.GATEWAY_SOCKET_DIR), 0o755)
        self._start_services(service_directory(data_dir))
        self._write_record()
        self._migrate()
        for part in self._parts():
            self._spawn(part)

    def _parts(self) -> list[Part]:
        parts = build_parts(host=self.host, port=self.port, num_rollouts=self.num_rollouts)
        return [part for part in parts if self.only is None or part.name in self.only]

    def _start_services(self, directory: Path) -> None:
        if os.environ.get("DATABASE_URL"):
            self.urls["DATABASE_URL"] = os.environ["DATABASE_URL"]
        else:
            self._start_service(postgres := EmbeddedPostgres(directory=directory), "postgres", "DATABASE_URL")
            self.say("up", f"Postgres in {postgres.data}")
        if os.environ.get("REDIS_URL"):
            self.urls["REDIS_URL"] = os.environ["REDIS_URL"]
        else:
            self._start_service(valkey := EmbeddedValkey(directory=directory), "valkey", "REDIS_URL")
            self.say("up", f"Valkey on {valkey.socket}")

    def _start_service(self, service: EmbeddedPostgres | EmbeddedValkey, name: str, variable: str) -> None:
        service.start()
        self._services.append(service)
        self.urls[variable] = service.url()

    def _migrate(self) -> None:
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "migrate", "--noinput", "-v", "0"]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise UpError(f"The database could not be brought up to date:\n{done.stderr[-2000:]}")

    def _environment(self) -> dict[str, str]:
        return part_environment(self.urls, self._secret_key())

    def _secret_key(self) -> str:
        path = Path(settings.DATA_DIR) / "secret-key"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(50))
        return path.read_text()

    def _spawn(self, part: Part, num_deaths: int = 0) -> None:
        process = subprocess.Popen(
            part.command,
            env=self._environment() | part.environment,
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        try:
            threading.Thread(target=self._copy_output, args=(part.name, process), daemon=True).start()
        except RuntimeError:  # no thread to be had: nobody would read what it says
            end_group(process.pid, 0)
            raise
        self.running[part.name] = Running(part=part, process=process, num_deaths=num_deaths)
        self._write_record()

    # Running

    def watch(self) -> None:
        """Until `stopping` is set. A machine that is out of processes, memory or disk for a moment ends no supervision."""
        due: dict[str, float] = {}
        while not self.stopping.wait(0.2):
            try:
                self._watch_services()
                self._watch_parts(due)
            except (OSError, RuntimeError) as error:
                self.say("up", f"could not look after the parts: {error}; trying again in {RETRY_S:g} s")
                self.stopping.wait(RETRY_S)

    def _watch_parts(self, due: dict[str, float]) -> None:
        """Whoever died is started again, after a pause that grows with its deaths. due: when, by name."""
        for name, running in list(self.running.items()):
            code = running.process.poll()
            if code is None:
                continue
            if name not in due:
                calm = time.monotonic() - running.started > CALM_AFTER_S
                running.num_deaths = 1 if calm else running.num_deaths + 1
                pause = RESTART_PAUSE_S[min(running.num_deaths, len(RESTART_PAUSE_S)) - 1]
                due[name] = time.monotonic() + pause
                end_group(running.process.pid, 0)
                self.say("up", f"{name} ended with code {code}; starting it again in {pause} s")
            elif time.monotonic() >= due[name]:
                self._spawn(running.part, running.num_deaths)
                del due[name]

    def _watch_services(self) -> None:
        """A database that died is started again on the same socket; its clients reconnect by themselves."""
        for service in self._services:
            if service.process is None or service.process.poll() is not None:
                self.say("up", f"{type(service).__name__} has died; starting it again")
                try:
                    service.start()
                except ServiceError as error:
                    self.say("up", str(error))
                    self.stopping.wait(1.0)
                self._write_record()

    def stop(self) -> None:
        """Parts in reverse order, then what they had running for them, then the services."""
        self.stopping.set()
        for running in reversed(self.running.values()):
            if running.process.poll() is None:
                self.say("up", f"stopping {running.part.name}")
            end_group(running.process.pid, running.part.patience_s)
            running.process.wait()
        if self.urls:
            self._end_detached()
        for service in reversed(self._services):
            service.stop()
        self.running.clear()
        self._services.clear()
        self.record.unlink(missing_ok=True)

    def _end_detached(self) -> None:
        """Sandboxes and engines outlive a worker on purpose; they do not outlive Gyre."""
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "end_detached"]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        for line in (done.stdout + (done.stderr if done.returncode else "")).splitlines():
            self.say("up", line)

    # The record of what runs, for the next supervisor

    def _write_record(self) -> None:
        pids = {name: running.process.pid for name, running in self.running.items()}
        pids |= {type(service).__name__: service.process.pid for service in self._services if service.process}
        entries = {name: {"pid": pid, "started": start_time(pid)} for name, pid in ({"up": os.getpid()} | pids).items()}
        self.record.write_text(json.dumps({"address": self.address, "urls": self.urls, "processes": entries}))

    def _end_leftovers(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(self.record.read_text())
            processes = record["processes"]
            if (
                is_same_process(processes["up"]["pid"], processes["up"]["started"])
                and processes["up"]["pid"] != os.getpid()
            ):
                raise UpError(f"Gyre already runs here, at {record['address']}. Stop it first, or set GYRE_DATA.")
            for name, entry in processes.items():
                if name != "up" and is_same_process(entry["pid"], entry["started"]):
                    self.say("up", f"ending {name}, left by an earlier start")
                    end_group(entry["pid"], 10.0)

    # Output

    def _copy_output(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        for line in process.stdout:
            self.say(name, line.decode(errors="replace").rstrip("\n"))

    def say(self, name: str, text: str) -> None:
        names = ["up", "gateway", "web", "rollouts", "cells", "controller"]
        colour = COLOURS[names.index(name) % len(COLOURS)] if name in names else "37"
        prefix = f"\033[{colour}m{name:>10} │\033[0m " if self.output.isatty() else f"{name:>10} | "
        with self._lock, contextlib.suppress(ValueError, OSError):
            print(prefix + text, file=self.output, flush=True)
            if self._log:
                print(f"{time.strftime('%H:%M:%S')} {name:>10} | {text}", file=self._log)


def make_own_directory(path: Path, mode: int) -> None:
    """Sockets live here: a directory that somebody else made first, as anyone may in /tmp, is refused.

    As root every sandbox has a user of its own, which must be able to enter the gateway's directory.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        raise UpError(f"{path} belongs to somebody else. Set GYRE_RUNTIME to a short path of your own.")
    path.chmod(mode)


@contextlib.contextmanager
def running_system(
    *, host: str = "127.0.0.1", port: int = 8000, only: frozenset[str] | None = None, log_path: Path | None = None
) -> Iterator[Supervisor]:
    """A started system whose parts are restarted while the block runs, and ended after it.

    The services' URLs are put into this process's environment and Django settings, so that the block can
    use the models at once.
    """
    supervisor = Supervisor(host=host, port=port, only=only, log_path=log_path)
    started, ended = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def live() -> None:
        try:
            supervisor.start()
        except BaseException as error:  # noqa: BLE001 -- handed to the caller below
            failures.append(error)
        started.set()
        try:
            if not failures:
                supervisor.watch()
            supervisor.stop()
        finally:
            ended.set()

    threading.Thread(target=live, name="supervisor").start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        adopt_urls(supervisor.urls)
        yield supervisor
    finally:
        supervisor.stopping.set()
        ended.wait()


def adopt_urls(urls: dict[str, str]) -> None:
    """Point this process's Django at services that were started after its settings were read."""
    from django.db import connections

    from gyre_web.celery import app
    from gyre_web.settings import celery_broker_url, channel_layers, database_settings

    os.environ |= urls
    connections.close_all()
    settings.DATABASE_URL, settings.REDIS_URL = urls["DATABASE_URL"], urls["REDIS_URL"]
    connections.settings["default"].update(database_settings(urls["DATABASE_URL"]))
    connections["default"].settings_dict.update(database_settings(urls["DATABASE_URL"]))
    settings.CHANNEL_LAYERS = channel_layers(urls["REDIS_URL"])
    app.conf.broker_url = celery_broker_url(urls["REDIS_URL"])
