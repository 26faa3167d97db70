"""Who may open and do what: every page and every change, for every role and for strangers."""

import pytest

from environments.models import Image, Model, Rollout, Task
from gyre_web.accounts.models import User
from tests.gyre_web.factories import make_run, make_user
from training.models import Group

RANK = ["", *User.Role.values]
READ = [
    ("/", "viewer"),
    ("/runs/{run}", "viewer"),
    ("/runs/{run}/charts", "viewer"),
    ("/runs/{run}/rollouts", "viewer"),
    ("/groups/{group}", "viewer"),
    ("/tasks", "viewer"),
    ("/tasks/{task}", "viewer"),
    ("/tasks/sets/shell-and-python", "viewer"),
    ("/tasks/import", "operator"),
    ("/models", "viewer"),
    ("/models/{model}", "viewer"),
    ("/evaluations", "viewer"),
    ("/compare", "viewer"),
    ("/exports", "viewer"),
    ("/runs/{run}/metrics.csv", "viewer"),
    ("/harnesses", "viewer"),
    ("/images", "viewer"),
    ("/images/{image}", "viewer"),
    ("/cluster", "viewer"),
    ("/account", "viewer"),
    ("/api/docs", "viewer"),
    ("/runs/new", "operator"),
    ("/harnesses/new", "operator"),
    ("/audit", "operator"),
    ("/people", "admin"),
]
WRITE = [
    ("/runs/{run}/filters", {"name": "x"}, "reviewer"),
    ("/runs/new/check", {"name": "x"}, "operator"),
    ("/runs/new/toml", {"toml": ""}, "operator"),
    ("/exports/make", {}, "reviewer"),
    ("/compare/judge", {}, "reviewer"),
    ("/models/add", {}, "operator"),
    ("/runs/{run}/steer", {"wanted": "pause"}, "operator"),
    ("/rollouts/{rollout}/fork", {}, "operator"),
    ("/tasks/{task}/try", {"harness": "none"}, "operator"),
    ("/images/{image}/rebuild", {}, "operator"),
    ("/people/{person}/link", {}, "admin"),
    ("/people/{person}/change", {"role": "viewer"}, "admin"),
]


@pytest.fixture
def names(db):
    attempt = make_run(owner=make_user("owner", "operator"), steps=1, nodes=False)
    return {
        "run": attempt.run_id,
        "group": Group.objects.first().pk,
        "model": Model.objects.first().pk,
        "task": Task.objects.first().pk,
        "rollout": Rollout.objects.first().pk,
        "person": make_user("somebody", "viewer").pk,
        "image": Image.objects.create(reference="gyre-task:1", host="h", origin="built").pk,
    }


@pytest.mark.parametrize("role", RANK)
def test_each_role_reads_exactly_the_pages_it_should(role, names, sign_in):
    client = sign_in(role)
    for path, needed in READ:
        answer = client.get(path.format(**names))
        if role == "":
            assert answer.status_code == 302, path
            assert answer["Location"].startswith("/sign-in?next="), path
        else:
            allowed = RANK.index(role) >= RANK.index(needed)
            assert answer.status_code == (200 if allowed else 403), (path, role)


@pytest.mark.parametrize("role", RANK)
def test_each_role_changes_exactly_what_it_should(role, names, sign_in):
    client = sign_in(role)
    for path, data, needed in WRITE:
        answer = client.post(path.format(**names), data)
        allowed = RANK.index(role) >= RANK.index(needed)
        if role == "":
            assert answer["Location"].startswith("/sign-in"), path
        else:
            assert (answer.status_code != 403) == allowed, (path, role)


def test_a_colleague_with_the_role_may_steer_a_run_that_is_not_theirs(names, sign_in):
    assert sign_in("operator").post(f"/runs/{names['run']}/steer", {"wanted": "pause"}).status_code == 302


def test_changes_by_get_are_refused(names, sign_in):
    client = sign_in("admin")
    for path, _, _ in WRITE:
        assert client.get(path.format(**names)).status_code == 405, path


def test_somebody_switched_off_is_out_at_once(names, sign_in):
    client = sign_in("viewer")
    assert client.get("/").status_code == 200
    User.objects.filter(username="a-viewer").update(is_active=False)

    assert client.get("/").status_code == 302


def test_a_form_without_its_csrf_token_is_refused(names):
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("a-operator", "operator"))

    assert client.post(f"/runs/{names['run']}/steer", {"wanted": "cancel"}).status_code == 403
