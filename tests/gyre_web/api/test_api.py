"""REST: tokens and scopes, the same refusals as the form, the same rows as the pages."""

import pytest
from django.test import Client

from gyre_web.accounts import services
from gyre_web.audit.models import AuditEntry
from tests.gyre_web.factories import make_catalog, make_run, make_user
from training.models import Run

pytestmark = pytest.mark.django_db
GOOD = {"evaluation": {"tasks": 4}}


def bearer(role: str = "admin", scope: str = "operate") -> dict[str, str]:
    _, secret = services.create_token(user=make_user(f"t-{role}", role), name="t", scope=scope)
    return {"Authorization": f"Bearer {secret}"}


def post(path: str, body: dict, headers: dict[str, str]):
    return Client().post(path, body, content_type="application/json", headers=headers)


def test_without_a_token_or_session_nothing_is_told():
    assert Client().get("/api/runs").status_code == 401
    assert Client().get("/api/runs", headers={"Authorization": "Bearer gyre_nope"}).status_code == 401


def test_a_session_may_read_and_a_revoked_token_may_not(sign_in):
    assert sign_in("viewer").get("/api/runs").json() == {"items": [], "total": 0}
    token, secret = services.create_token(user=make_user(), name="t", scope="read")
    services.revoke_token(token=token)
    assert Client().get("/api/runs", headers={"Authorization": f"Bearer {secret}"}).status_code == 401


def test_a_token_exceeds_neither_its_scope_nor_its_owners_role():
    make_catalog()
    body = {"name": "r", "config": GOOD}

    assert post("/api/runs", body, bearer("admin", "read")).status_code == 403
    assert post("/api/runs", body, bearer("viewer", "operate")).status_code == 403
    assert post("/api/runs", body, bearer("operator", "operate")).status_code == 201


def test_a_session_needs_the_csrf_token_to_change_something():
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user())

    assert client.post("/api/runs", {"name": "r"}, content_type="application/json").status_code in (401, 403)
    assert not Run.objects.exists()


def test_a_wrong_config_is_refused_with_every_wrong_field():
    make_catalog()
    config = {"model": {"name": "nope"}, "tasks": {"rollouts_per_group": 1}, "sampling": {"top_k": 5}, "bogus": 1}

    answer = post("/api/runs", {"name": "r", "config": config}, bearer())

    assert answer.status_code == 422
    fields = {error["field"] for error in answer.json()["errors"]}
    assert fields >= {"model.name", "tasks.rollouts_per_group", "sampling.top_k", "bogus"}
    assert all(error["remedy"] for error in answer.json()["errors"])
    assert not Run.objects.exists()


def test_a_good_config_starts_a_run_that_is_audited():
    make_catalog()

    answer = post("/api/runs", {"name": "r", "config": GOOD}, bearer())

    assert answer.status_code == 201
    assert answer.json()["attempts"][0]["config"]["evaluation"]["tasks"] == 4
    assert AuditEntry.objects.get(action="run.start").user_name == "t-admin"
    assert post("/api/runs", {"name": "r", "config": GOOD}, bearer()).status_code == 409


def test_checking_starts_nothing():
    make_catalog()

    answer = post("/api/check-config", {"config": GOOD}, bearer("viewer", "read")).json()

    assert answer["differences"] == [{"field": "evaluation.tasks", "value": 4, "default": 120}]
    assert not Run.objects.exists()


def test_steering_works_once_and_impossible_things_are_explained():
    attempt = make_run(steps=1, nodes=False)
    path = f"/api/runs/{attempt.run_id}/steer"

    assert post(path, {"wanted": "cancel", "reason": "enough"}, bearer()).json()["wanted"] == "cancel"
    answer = post(path, {"wanted": "run"}, bearer())
    assert answer.status_code == 409
    assert "cancelled" in answer.json()["detail"]


def test_rollouts_are_filtered_as_on_the_page_and_unknown_filters_are_named():
    attempt = make_run(steps=2, groups_per_step=3, nodes=False)
    path = f"/api/runs/{attempt.run_id}/rollouts"

    page = Client().get(f"{path}?reward_min=1", headers=bearer()).json()
    assert {item["reward"] for item in page["items"]} == {1.0}
    assert page["total"] == len(page["items"])
    answer = Client().get(f"{path}?rewards=1", headers=bearer())
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "rewards"


def test_a_rollouts_nodes_come_with_their_token_ids():
    attempt = make_run(steps=1, groups_per_step=1)
    rollout = attempt.groups.first().members.first().rollout

    detail = Client().get(f"/api/rollouts/{rollout.pk}", headers=bearer()).json()
    nodes = Client().get(f"/api/rollouts/{rollout.pk}/nodes?after=1&limit=2", headers=bearer()).json()

    assert detail["member"]["slot"] == 0
    assert [node["index"] for node in nodes] == [2, 3]
    assert nodes[0]["token_ids"] == [1] * 40


def test_every_answer_is_described_by_openapi_and_the_page_lists_it(sign_in):
    paths = sign_in("viewer").get("/api/openapi.json").json()["paths"]

    assert {"/api/runs", "/api/check-config", "/api/rollouts/{rollout_id}"} <= set(paths)
    page = sign_in("viewer").get("/api/docs").content.decode()
    assert all(path in page for path in paths)


def test_versions_and_metrics_of_the_latest_attempt():
    attempt = make_run(steps=2, nodes=False)

    versions = Client().get(f"/api/runs/{attempt.run_id}/versions", headers=bearer()).json()
    metrics = Client().get(f"/api/runs/{attempt.run_id}/metrics?key=reward_mean", headers=bearer()).json()

    assert [version["number"] for version in versions] == [0, 1, 2]
    assert [metric["step"] for metric in metrics] == [1, 2]


def test_unknown_addresses_are_not_found():
    nobody = "00000000-0000-0000-0000-000000000000"
    for path in (f"runs/{nobody}", f"rollouts/{nobody}", f"attempts/{nobody}", f"runs/{nobody}/versions"):
        assert Client().get(f"/api/{path}", headers=bearer()).status_code == 404, path
