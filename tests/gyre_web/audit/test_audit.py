"""The audit trail: what is written, in which request, and how it is found again."""

import pytest

from gyre_web.audit.models import AuditEntry
from gyre_web.audit.services import record
from tests.gyre_web.factories import make_run, make_user

pytestmark = pytest.mark.django_db


def test_an_entry_survives_the_person_it_names():
    person = make_user("bob", "operator")
    entry = record(person, "person.test", person, before={"a": 1}, after={"id": person.pk})
    person.delete()

    entry.refresh_from_db()
    assert (entry.user, entry.user_name) == (None, "bob")
    assert isinstance(entry.after["id"], str)


def test_all_entries_of_one_request_share_its_id(sign_in):
    attempt = make_run(steps=1, nodes=False)

    answer = sign_in("operator").post(
        f"/runs/{attempt.run_id}/steer", {"wanted": "pause"}, headers={"X-Request-Id": "proxy-12345678"}
    )

    assert answer["X-Request-Id"] == "proxy-12345678"
    assert AuditEntry.objects.get().request_id == "proxy-12345678"


def test_a_malformed_request_id_is_replaced(sign_in):
    answer = sign_in("viewer").get("/", headers={"X-Request-Id": "a b\tc"})

    assert len(answer["X-Request-Id"]) == 32


def test_the_page_finds_by_person_action_and_object(sign_in):
    one, other = make_user("bob", "operator"), make_user("eve", "operator")
    record(one, "run.pause", one, reason="lunch")
    record(other, "run.stop", other)
    client = sign_in("operator")

    assert client.get("/audit?user_name=bob").context["pager"].total == 1
    assert client.get("/audit?action=run.stop").context["entries"][0].user_name == "eve"
    assert client.get("/audit?q=lunch").context["pager"].total == 1
    assert client.get(f"/audit?object_id={other.pk}").context["pager"].total == 1


def test_changes_to_people_are_audited_before_and_after(sign_in):
    person = make_user("bob", "viewer")

    sign_in("admin").post(f"/people/{person.pk}/change", {"role": "operator", "active": "1"})

    entry = AuditEntry.objects.get(action="person.change")
    assert (entry.before["role"], entry.after["role"]) == ("viewer", "operator")
