"""Signing in: by password, by a link that works once, and never without."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from gyre_web.accounts import services
from gyre_web.accounts.models import SignInLink, User
from gyre_web.audit.models import AuditEntry

pytestmark = pytest.mark.django_db


def test_the_first_start_gives_a_link_that_makes_an_admin():
    path = services.first_admin_link()
    assert path is not None

    client = Client()
    assert client.get(path).status_code == 200
    assert client.post(path).status_code == 302

    assert User.objects.get(pk=client.session["_auth_user_id"]).role == User.Role.ADMIN
    assert services.first_admin_link() is None


def test_looking_at_a_link_does_not_use_it_up_but_using_it_does():
    user, path = services.create_person(username="ada", role="viewer")
    for _ in range(2):
        assert Client().get(path).status_code == 200

    assert Client().post(path).status_code == 302

    assert Client().post(path).status_code == 410
    assert AuditEntry.objects.get(action="person.sign_in_by_link").user == user


def test_an_expired_or_replaced_link_is_gone():
    user, first = services.create_person(username="ada", role="viewer")
    second = services.create_link(user=user)
    assert Client().get(first).status_code == 410
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert Client().post(second).status_code == 410


def test_a_link_of_somebody_switched_off_does_not_work():
    user, path = services.create_person(username="ada", role="viewer")
    User.objects.filter(pk=user.pk).update(is_active=False)

    assert Client().post(path).status_code == 410


def test_the_database_holds_no_secret():
    _, path = services.create_person(username="ada", role="viewer")

    secret = path.rsplit("/", 1)[1]
    assert SignInLink.objects.get().digest == services.digest_of(secret)
    assert secret not in SignInLink.objects.get().digest


def test_a_password_signs_in_and_a_wrong_one_says_so():
    User.objects.create_user("ada", password="correct horse battery")
    client = Client()

    wrong = client.post("/sign-in", {"username": "ada", "password": "x"})
    assert b"do not match" in wrong.content
    assert client.post("/sign-in", {"username": "ada", "password": "correct horse battery"}).status_code == 302


def test_every_page_sends_strangers_to_the_sign_in_page():
    for path in ("/account", "/people"):
        answer = Client().get(path)
        assert answer.status_code == 302
        assert answer["Location"] == f"/sign-in?next={path}"


def test_a_fragment_asked_for_by_a_stranger_redirects_the_whole_page():
    answer = Client().get("/account", headers={"HX-Request": "true"})

    assert answer.status_code == 204
    assert answer["HX-Redirect"] == "/sign-in?next=/account"


def test_nothing_inline_is_allowed_by_the_content_security_policy():
    policy = Client().get("/sign-in")["Content-Security-Policy"]

    assert "unsafe" not in policy
