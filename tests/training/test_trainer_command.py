"""`manage.py trainer` as a real process: trains, is killed with -9, goes on, ends on SIGTERM and with its attempt."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from django.conf import settings as django_settings
from django.db import connection

from tests.training.attempts import make_attempt, make_demonstrations, request_step
from training.models import Attempt, Checkpoint, Metric, OptimizerStep, Version

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def start(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    names = connection.settings_dict
    url = f"postgresql://{names['USER']}@/{names['NAME']}?host={quote(names['HOST'], safe='')}"
    if names["PORT"]:
        url += f"&port={names['PORT']}"
    environment = {**os.environ, "DATABASE_URL": url, "GYRE_DATA": str(settings.DATA_DIR), "OMP_NUM_THREADS": "1"}
    started = []

    def launch(attempt):
        command = [sys.executable, str(Path(django_settings.BASE_DIR) / "manage.py"), "trainer", "--cell"]
        process = subprocess.Popen([*command, str(attempt.cells.get().id)], env=environment)
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_until(condition, *, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_killed_with_9_in_the_warm_start_and_after_a_step_it_goes_on_where_rows_say(start, tmp_path):
    attempt = make_attempt(tmp_path, warm_start={"demonstrations": 60, "batch_size": 1})
    make_demonstrations(attempt, 60)
    first = start(attempt)
    wait_until(lambda: Metric.objects.filter(attempt=attempt, kind="supervised", key="loss").count() >= 20)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = start(attempt)
    wait_until(lambda: Version.objects.filter(attempt=attempt, number=0).exists())
    Attempt.objects.filter(pk=attempt.pk).update(state=Attempt.State.RUNNING)
    request_step(attempt, 1)
    wait_until(lambda: OptimizerStep.objects.get(attempt=attempt, number=1).state == OptimizerStep.State.DONE)
    second.send_signal(signal.SIGKILL)
    second.wait()
    request_step(attempt, 2)
    third = start(attempt)
    wait_until(lambda: Checkpoint.objects.filter(attempt=attempt, step=2).exists())
    assert psutil.Process(third.pid).environ()["KMP_BLOCKTIME"] == "1"
    assert list(Version.objects.values_list("number", flat=True)) == [0, 1, 2]
    third.send_signal(signal.SIGTERM)
    assert third.wait(timeout=20) == 0


def test_it_ends_by_itself_with_its_attempt(start, tmp_path):
    attempt = make_attempt(tmp_path)
    process = start(attempt)
    Attempt.objects.filter(pk=attempt.pk).update(state=Attempt.State.CANCELLED)
    assert process.wait(timeout=120) == 0
