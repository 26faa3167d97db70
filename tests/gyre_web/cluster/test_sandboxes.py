"""The sandboxes of the cluster page: whose, of which kind and image, where, and which are orphans."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from environments.models import Rollout, Sandbox
from tests.gyre_web.factories import make_run

pytestmark = pytest.mark.django_db


def make_sandbox(**fields: Any) -> Sandbox:
    known = {"host": "worker-1", "directory": "/d", "lease_expires_at": timezone.now() + timedelta(minutes=5)}
    return Sandbox.objects.create(**(known | fields))


def read_rows(page: str) -> list[list[str]]:
    """Text of the cells of the sandboxes' table."""
    table = page.partition("<h2>Sandboxes</h2>")[2]
    rows = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)]
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in rows if row]


def test_each_row_says_whose_it_is_its_kind_image_purpose_and_host(sign_in):
    attempt = make_run(steps=1, groups_per_step=1, nodes=False)
    rollout = attempt.groups.first().members.first().rollout
    Rollout.objects.filter(pk=rollout.pk).update(lease_owner="worker-1:17")
    make_sandbox(rollout=rollout, kind="docker", image=f"sha256:{'ab12' * 16}")
    make_sandbox(kind="docker", purpose="warm", image=f"sha256:{'cd34' * 16}", host="worker-2")
    make_sandbox(stopped_at=timezone.now(), host="worker-3")

    response = sign_in("viewer").get("/cluster")

    first, second = read_rows(response.content.decode())
    assert first[:7] == [
        rollout.task.name, attempt.run.name, "Docker", "ab12ab12", "Agent", "worker-1:17", "worker-1",
    ]  # fmt: skip
    assert (second[0], second[2], second[4], second[6]) == (
        "none yet", "Docker", "prepared, for whoever comes", "worker-2",
    )  # fmt: skip
    assert response.context["num_sandboxes"] == {
        "total": 2, "process": 0, "docker": 2, "warm": 1, "orphans": 0, "hosts": 2,
    }  # fmt: skip


def test_an_orphan_leads_the_list_and_is_marked(sign_in):
    make_sandbox()
    make_sandbox(host="worker-9", lease_expires_at=timezone.now() - timedelta(minutes=1))

    page = sign_in("viewer").get("/cluster").content.decode()

    first, second = read_rows(page)
    assert (first[6], "orphan" in first[8], "orphan" in second[8]) == ("worker-9", True, False)
    assert "1 orphan<" in page


def test_more_sandboxes_cost_no_more_queries_and_all_are_counted(sign_in):
    client = sign_in("viewer")
    make_sandbox()
    with CaptureQueriesContext(connection) as one:
        client.get("/cluster")
    now = timezone.now()
    Sandbox.objects.bulk_create(
        Sandbox(host=f"worker-{n % 3}", directory="/d", lease_expires_at=now + timedelta(minutes=5)) for n in range(250)
    )
    with CaptureQueriesContext(connection) as many:
        response = client.get("/cluster")

    assert len(one) == len(many)
    assert response.context["num_sandboxes"]["total"] == 251
    assert len(response.context["sandboxes"]) == 200


def test_without_any_the_page_says_so(sign_in):
    assert "No sandbox is open." in sign_in("viewer").get("/cluster").content.decode()
