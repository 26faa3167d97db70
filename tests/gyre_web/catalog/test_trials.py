"""Try this task: one rollout outside of any run, or a plain word why not."""

from unittest import mock

import pytest

from environments.models import Engine, Rollout, Task
from gyre_web.catalog import trials
from tests.gyre_web.factories import make_catalog, make_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def task(tmp_path) -> Task:
    make_catalog()
    task = Task.objects.first()
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text("true\n")
    task.directory = str(tmp_path)
    task.save()
    return task


@pytest.fixture(autouse=True)
def enqueued():
    with mock.patch.object(trials, "enqueue_rollout") as enqueue:
        yield enqueue


def serve(pool: str, **fields) -> Engine:
    values = {"name": "e", "base_url": "http://x", "model_name": "smollm2-135m", "state": "serving"}
    return Engine.objects.create(pool=pool, **{**values, **fields})


def test_the_expert_plays_where_no_engine_serves_and_the_page_says_so(sign_in, task, enqueued):
    client = sign_in("operator")
    assert "No engine serves a model now" in client.get(f"/tasks/{task.pk}").content.decode()
    answer = client.post(f"/tasks/{task.pk}/try", {"harness": "mini-swe-agent", "place": "expert"})
    rollout = Rollout.objects.get()
    assert answer["Location"] == f"/rollouts/{rollout.pk}"
    assert (rollout.purpose, rollout.pool, rollout.task) == ("trial", "expert-mini-swe-agent", task)
    enqueued.assert_called_once_with(rollout.pk)
    engine = Engine.objects.get(pool=rollout.pool)
    assert (engine.base_url, engine.state, engine.version) == ("expert://mini-swe-agent", "serving", -1)


def test_a_run_that_serves_is_offered_and_its_limits_are_used(sign_in, task):
    attempt = make_run(steps=1, nodes=False)
    Engine.objects.all().delete()
    Rollout.objects.exclude(pk=None).update(state="ended")
    serve(attempt.pool, version=3)
    places = {place.key: place for place in trials.list_places(task)}
    assert places[attempt.pool].title == f"smollm2-135m, v3 of run {attempt.run.name}"
    sign_in("operator").post(f"/tasks/{task.pk}/try", {"harness": "mini-swe-agent", "place": attempt.pool})
    rollout = Rollout.objects.get(purpose="trial")
    assert rollout.pool == attempt.pool
    assert rollout.sampling["max_tokens"] == attempt.config["sampling"]["max_tokens"]


def test_engines_that_do_not_serve_or_serve_an_unknown_model_are_not_offered(task):
    serve("a", state="stopped")
    serve("b", model_name="unheard-of")
    serve("c")
    assert [place.key for place in trials.list_places(task)] == ["c", "expert"]


def test_a_task_without_a_solution_has_no_expert(sign_in, task, tmp_path):
    (tmp_path / "solution" / "solve.sh").unlink()
    answer = sign_in("operator").post(f"/tasks/{task.pk}/try", {"harness": "mini-swe-agent", "place": "expert"})
    assert answer.status_code == 409
    assert "Nothing serves there any more" in answer.content.decode()
    assert not Rollout.objects.exists()


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("reviewer", 403), ("operator", 302), ("admin", 302)])
def test_only_an_operator_may_try(sign_in, task, role, status):
    client = sign_in(role)
    answer = client.post(f"/tasks/{task.pk}/try", {"harness": "mini-swe-agent", "place": "expert"})
    assert answer.status_code == status
    assert ("Try it" in client.get(f"/tasks/{task.pk}").content.decode()) == (status == 302)


def test_rest_starts_a_trial_and_says_what_serves(sign_in, task):
    client = sign_in("operator")
    made = client.post(
        f"/api/tasks/{task.pk}/try", {"harness": "mini-swe-agent", "place": "expert"}, content_type="application/json"
    )
    assert (made.status_code, made.json()["rollout"]) == (201, str(Rollout.objects.get().pk))
    refused = client.post(
        f"/api/tasks/{task.pk}/try", {"harness": "mini-swe-agent", "place": "gone"}, content_type="application/json"
    )
    assert (refused.status_code, refused.json()["places"]) == (409, ["expert"])
