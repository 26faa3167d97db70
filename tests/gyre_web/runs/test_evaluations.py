"""The evaluations page: any against any, with intervals; a run's numbers as files."""

import csv
import io

import pytest

from environments.models import Rollout, Task
from gyre_web.runs import evaluations
from tests.gyre_web.factories import RunFactory, make_run
from training.models import Run, Version

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt():
    return make_run(steps=1)


def evaluate(attempt, solved, *, number, samples=1, tasks=None):
    """A finished evaluation in which task n is solved solved(n) times of `samples`."""
    factory_tasks = tasks or list(Task.objects.order_by("name")[:12])
    rollouts = {}
    for n, task in enumerate(factory_tasks):
        for sample in range(samples):
            rollout = Rollout.objects.create(
                task=task, model=Rollout.objects.first().model, harness=Rollout.objects.first().harness,
                pool=attempt.pool, purpose="evaluation", state="ended", outcome="completed",
                reward=float(sample < solved(n)),
            )  # fmt: skip
            rollouts[f"{task.pk}#{sample}" if sample else str(task.pk)] = [str(rollout.pk)]
    state = {
        "state": "done", "tasks": [str(task.pk) for task in factory_tasks], "samples": samples, "rollouts": rollouts,
        "n": len(rollouts), "solved": 0, "missing": 0, "rate": 0.5,
        "pass_at": {"1": {"value": 0.5, "low": 0.2, "high": 0.8, "tasks": 12, "missing": 0, "method": "wilson"}},
    }  # fmt: skip
    version, _ = Version.objects.update_or_create(
        attempt=attempt, number=number, defaults={"evaluation": {"heldout": state}}
    )
    return version


def test_two_evaluations_of_different_runs_are_compared_on_the_tasks_both_tried(attempt):
    one = evaluate(attempt, lambda n: n % 4, number=0, samples=4)
    other_run = Run.objects.create(name="other")
    attempt2 = type(attempt).objects.create(run=other_run, number=1, config={**attempt.config, "kind": "evaluation"})
    shared = list(Task.objects.order_by("name")[4:12])
    two = evaluate(attempt2, lambda n: n % 4 + 1, number=0, samples=4, tasks=shared)
    found = evaluations.compare(evaluations.find_evaluation(str(one.pk)), evaluations.find_evaluation(str(two.pk)))
    assert (found.num_common, found.same_tasks) == (8, False)
    assert [side.name for side in found.overall] == ["pass@1", "pass@2", "pass@4"]
    difference = found.overall[0].difference
    assert difference.value == pytest.approx(0.25)
    assert difference.is_clear
    assert {side.name for side in found.families} == {task.family for task in shared}


def test_the_page_lists_compares_and_says_what_it_means(attempt, sign_in):
    one, two = evaluate(attempt, lambda n: 0, number=0), evaluate(attempt, lambda n: n % 2, number=1)
    client = sign_in("viewer")
    page = client.get("/evaluations").content.decode()
    assert page.count("/1/0") >= 1
    page = client.get(f"/evaluations?a={one.pk}&b={two.pk}").content.decode()
    assert "B is better" in page
    assert "By family" in page
    assert client.get("/evaluations?a=x&b=9999999999999999999999").status_code == 200


def test_without_any_evaluation_the_page_says_how_to_make_one(sign_in, db):
    assert "No evaluation is finished yet" in sign_in("operator").get("/evaluations").content.decode()


def test_rest_gives_the_same_comparison(attempt, sign_in):
    one, two = evaluate(attempt, lambda n: 0, number=0), evaluate(attempt, lambda n: n % 2, number=1)
    client = sign_in("viewer")
    assert {each["id"] for each in client.get("/api/evaluations").json()} == {one.pk, two.pk}
    body = client.get(f"/api/evaluations/compare?a={one.pk}&b={two.pk}").json()
    assert body["overall"][0]["difference"]["value"] == pytest.approx(0.5)
    assert body["overall"][0]["difference"]["is_clear"]


@pytest.mark.parametrize("address", ["/runs/{}/metrics.{}", "/api/runs/{}/metrics.{}"])
def test_every_number_of_a_run_goes_out_as_csv_and_json(attempt, sign_in, address):
    client = sign_in("viewer")
    answer = client.get(address.format(attempt.run_id, "csv"))
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert len(rows) == attempt.metrics.count()
    assert {row["key"] for row in rows} == set(attempt.metrics.values_list("key", flat=True))
    body = client.get(address.format(attempt.run_id, "json")).json()
    assert body["definitions"]["reward_mean"]["how"]
    assert len(body["metrics"]) == len(rows)
    assert client.get(address.format(attempt.run_id, "xml")).status_code == 404


@pytest.mark.parametrize("kind", ["supervised", "preference", "evaluation"])
def test_a_run_of_each_kind_has_a_page_with_its_own_tiles_and_charts(kind, sign_in):
    attempt = RunFactory().make(name=f"a {kind}", steps=0)
    attempt.config["kind"] = kind
    attempt.save()
    evaluate(attempt, lambda n: n % 2, number=0)
    client = sign_in("viewer")
    page = client.get(f"/runs/{attempt.run_id}").content.decode()
    assert "pass@1" in page
    assert "Delivered to training" not in page
    assert ("Loss" in page) == (kind != "evaluation")
    assert client.get(f"/runs/{attempt.run_id}/charts").status_code == 200
    assert f'badge-accent">{kind}' in client.get("/").content.decode()


def test_the_run_page_says_what_was_delivered_to_training(attempt, sign_in):
    page = sign_in("viewer").get(f"/runs/{attempt.run_id}").content.decode()
    assert "Delivered to training" in page
    body = sign_in("viewer").get(f"/api/runs/{attempt.run_id}/delivery").json()
    assert round(sum(line["tokens_percent"] for line in body["lines"]), 6) == 100.0
