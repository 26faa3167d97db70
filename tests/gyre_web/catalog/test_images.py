"""The pages of images: what there is, how a making goes, and the wish to make one again."""

from datetime import timedelta

import pytest
from django.utils import timezone

from environments.models import Image
from gyre_web.audit.models import AuditEntry

pytestmark = pytest.mark.django_db


def make_image(**fields) -> Image:
    return Image.objects.create(**{"reference": "gyre-task:1", "host": "here", "origin": "built", **fields})


def test_without_images_the_page_says_how_one_comes_to_be(sign_in):
    assert "manage.py images build" in sign_in("viewer").get("/images").content.decode()


def test_what_is_being_made_comes_first_and_a_stand_in_is_said(sign_in):
    make_image(state="ready", stand_ins={"python:3.12": "gyre-base:x"}, size_bytes=1234567)
    make_image(reference="gyre-task:2", state="building")
    page = sign_in("viewer").get("/images").content.decode()
    assert page.index("gyre-task:2") < page.index("gyre-task:1")
    assert "a stand-in took the place of python:3.12" in page


def test_the_log_is_shown_as_text_and_a_fragment_brings_it_anew(sign_in):
    image = make_image(state="building", log="Step 1/2 : FROM <b>x</b>\n")
    client = sign_in("viewer")
    assert "Step 1/2 : FROM &lt;b&gt;x&lt;/b&gt;" in client.get(f"/images/{image.pk}").content.decode()
    Image.objects.update(log="Step 2/2\n", state="failed", error="It broke; mend it.")
    fragment = client.get(f"/images/{image.pk}", headers={"HX-Request": "true"}).content.decode()
    assert "Step 2/2" in fragment
    assert "It broke; mend it." in fragment
    assert "<html" not in fragment


def test_an_operator_has_it_built_again_once(sign_in):
    image = make_image(state="failed", error="It broke.", log="words")
    client = sign_in("operator")
    assert client.post(f"/images/{image.pk}/rebuild").status_code == 302
    image.refresh_from_db()
    assert (image.state, image.error) == ("wanted", "")
    assert AuditEntry.objects.get().action == "image.rebuild"
    Image.objects.update(state="building", lease_expires_at=timezone.now() + timedelta(minutes=1))
    client.post(f"/images/{image.pk}/rebuild")
    image.refresh_from_db()
    assert image.state == "building"
    assert AuditEntry.objects.count() == 1


def test_rest_gives_images_and_the_log_of_one(sign_in):
    image = make_image(log="words")
    client = sign_in("viewer")
    assert [found["reference"] for found in client.get("/api/images").json()] == ["gyre-task:1"]
    assert client.get(f"/api/images/{image.pk}").json()["log"] == "words"
