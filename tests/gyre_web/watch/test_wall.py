"""The wall: exactly the live rollouts of a run, each with its tail."""

import orjson
import pytest
from django.test import Client
from django.urls import reverse

from environments import live
from environments.models import Engine
from tests.gyre_web.watch.makers import make_call, make_member, make_rollout, make_session, make_user, tokens_event

pytestmark = pytest.mark.django_db


def wall_of(run) -> dict:
    client = Client()
    client.force_login(make_user())
    assert client.get(reverse("watch:wall", args=[run.pk])).status_code == 200
    return orjson.loads(client.get(reverse("watch:wall_data", args=[run.pk])).content)


def test_it_shows_the_live_rollouts_of_the_run_and_no_others():
    attempt = make_member(make_rollout()).group.attempt
    serving = make_rollout(pool=attempt.pool)
    expert = make_rollout(pool=f"{attempt.pool}-expert")
    make_rollout(pool=attempt.pool, state="ended")
    make_rollout(pool="another")
    data = wall_of(attempt.run)
    assert [cell["id"] for cell in data["cells"]] == [str(serving.pk), str(expert.pk)]
    assert data["total"] == 2


def test_a_cell_has_the_tail_of_its_log_without_ids_and_goes_on_from_there():
    attempt = make_member(make_rollout()).group.attempt
    rollout = make_rollout(pool=attempt.pool)
    call = make_call(rollout, make_session(rollout), 0)
    live.append_sync(rollout.pk, [tokens_event(call, 0, i, "x") for i in range(300)])
    Engine.objects.create(pool=attempt.pool, name="cell-0", base_url="http://x", model_name="m")
    data = wall_of(attempt.run)
    (cell,) = data["cells"]
    assert cell["position"][1] == 300
    assert len(cell["tail"]) == 200
    assert "ids" not in cell["tail"][0][3]
    assert list(data["engines"].values()) == ["cell-0"]


def test_a_stranger_does_not_see_it():
    attempt = make_member(make_rollout()).group.attempt
    assert Client().get(reverse("watch:wall_data", args=[attempt.run_id])).status_code == 302
