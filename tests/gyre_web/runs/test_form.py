"""The new-run form: made from the config tree, checked while typing, TOML both ways."""

import json

import pytest

from gyre_web.audit.models import AuditEntry
from gyre_web.runs.form_fields import build_sections, data_from_post, field_kinds, flat_values
from tests.gyre_web.factories import make_catalog, make_run
from training.config import RunConfig
from training.models import Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def values():
    """What the browser posts for a config that fits the factory's catalog."""
    make_catalog()
    return flat_values(RunConfig.model_validate({"evaluation": {"tasks": 4}}).model_dump(mode="json"))


def test_every_field_of_the_config_is_in_the_form():
    sections = build_sections({})
    shown = {field.name for section in sections for field in section.fields}
    shown |= {field.name for section in sections for part in section.parts for field in part}

    assert {name.replace("*", "0") for name in field_kinds()} == shown


def test_what_the_form_posts_is_the_config_it_showed():
    config = RunConfig.model_validate(
        {"sampling": {"seed": 7}, "tasks": {"mixture": [{"families": ["a", "b"]}, {"weight": 2}]}}
    )

    assert RunConfig.model_validate(data_from_post(flat_values(config.model_dump(mode="json")))) == config


def test_the_check_names_every_wrong_field_at_once(sign_in, values):
    wrong = {
        **values,
        "tasks.rollouts_per_group": "1",
        "model.name": "nope",
        "sampling.temperature": "hot",
        "name": "r",
    }

    answer = sign_in("operator").post("/runs/new/check", wrong).json()

    assert {error["field"] for error in answer["errors"]} >= {
        "tasks.rollouts_per_group",
        "model.name",
        "sampling.temperature",
    }
    assert answer["ok"] is False
    assert answer["toml"] is None


def test_the_check_shows_what_differs_and_an_estimate(sign_in, values):
    answer = sign_in("operator").post("/runs/new/check", {**values, "optimization.steps": "3", "name": "r"}).json()

    assert answer["ok"], answer["errors"]
    assert {"field": "optimization.steps", "value": "3", "base": "9"} in answer["differences"]
    assert answer["estimate"]["rollouts"]["training"] == 3 * 72
    assert "steps = 3" in answer["toml"]


def test_a_good_form_starts_the_run_once_and_is_audited(sign_in, values):
    client = sign_in("operator")

    answer = client.post("/runs/new", {**values, "name": "first"})

    run = Run.objects.get(name="first")
    assert answer["Location"] == f"/runs/{run.pk}"
    assert run.owner.username == "a-operator"
    assert AuditEntry.objects.get(action="run.start").object_id == str(run.pk)
    again = client.post("/runs/new", {**values, "name": "first"})
    assert again.status_code == 422
    assert b"first-2 is free" in again.content
    assert Run.objects.count() == 1


def test_a_wrong_form_starts_nothing_and_keeps_what_was_typed(sign_in, values):
    answer = sign_in("operator").post("/runs/new", {**values, "name": "r", "tasks.rollouts_per_group": "1"})

    assert answer.status_code == 422
    assert Run.objects.count() == 0
    assert 'name="tasks.rollouts_per_group" value="1"' in answer.content.decode()


def test_bad_toml_names_its_line(sign_in):
    answer = sign_in("operator").post("/runs/new/toml", {"toml": "seed = 1\n[model\n"})

    assert answer.status_code == 422
    assert "Line 2" in answer.json()["error"]


def test_pasted_toml_fills_the_fields_and_names_unknown_ones(sign_in, values):
    answer = sign_in("operator").post("/runs/new/toml", {"toml": "[optimization]\nsteps = 4\nsteep = 1"}).json()

    assert answer["values"]["optimization.steps"] == "4"
    assert "optimization.steep" in {error["field"] for error in answer["errors"]}


def test_a_clone_is_prefilled_and_says_what_differs_from_its_source(sign_in):
    attempt = make_run(name="demo", steps=1, nodes=False)
    client = sign_in("operator")

    page = client.get(f"/runs/new?from={attempt.run_id}").content.decode()

    assert 'value="demo-2"' in page
    assert 'name="warm_start.demonstrations" value="208"' in page
    posted = {
        **flat_values(attempt.config),
        "name": "demo-2",
        "from": str(attempt.run_id),
        "warm_start.demonstrations": "10",
        "evaluation.tasks": "4",
    }
    found = client.post("/runs/new/check", posted).json()
    assert {"field": "warm_start.demonstrations", "value": "10", "base": "208"} in found["clone_differences"]
    client.post("/runs/new", posted)
    assert Run.objects.get(name="demo-2").cloned_from == attempt.run


def test_text_in_the_check_data_cannot_break_out_of_its_script_element(sign_in):
    attempt = make_run(name="</script><script>alert(1)</script>", steps=1, nodes=False)

    page = sign_in("operator").get(f"/runs/new?from={attempt.run_id}").content.decode()

    data = page.split('id="first-check" type="application/json">')[1].split("</script>")[0]
    assert json.loads(data)["errors"] is not None
