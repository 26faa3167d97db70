"""People, tokens and the theme."""

import pytest
from django.test import Client

from gyre_web.accounts.models import ApiToken, User
from gyre_web.accounts.services import find_token
from tests.gyre_web.factories import make_user

pytestmark = pytest.mark.django_db


def test_an_admin_adds_somebody_and_hands_over_a_link_that_works(sign_in):
    client = sign_in("admin")

    client.post("/people", {"username": "bob", "full_name": "Bob B", "role": "reviewer"})
    page = client.get("/people")

    url = page.context["fresh_link"]["url"]
    assert Client().post(url.removeprefix("http://testserver")).status_code == 302
    assert client.get("/people").context["fresh_link"] is None
    assert User.objects.get(username="bob").role == "reviewer"


def test_a_name_that_exists_is_refused_beside_its_field(sign_in):
    make_user("bob")

    answer = sign_in("admin").post("/people", {"username": "BOB", "role": "viewer"})

    assert answer.status_code == 422
    assert b"Somebody has this name already" in answer.content


def test_nobody_changes_their_own_role(sign_in):
    client = sign_in("admin")
    me = User.objects.get(username="a-admin")

    client.post(f"/people/{me.pk}/change", {"role": "viewer"})

    me.refresh_from_db()
    assert me.role == "admin"


def test_a_token_is_shown_once_and_kept_as_a_digest(sign_in):
    client = sign_in("viewer")
    client.post("/account/tokens", {"name": "ci", "scope": "read"})

    secret = client.get("/account").context["fresh_token"]

    assert find_token(secret) == ApiToken.objects.get()
    assert secret not in str(ApiToken.objects.values().get())
    assert client.get("/account").context["fresh_token"] is None


def test_people_revoke_their_own_tokens_and_no_others(sign_in):
    client = sign_in("viewer")
    client.post("/account/tokens", {"name": "ci", "scope": "read"})
    token = ApiToken.objects.get()

    assert sign_in("admin").post(f"/account/tokens/{token.pk}/revoke").status_code == 404
    client.post(f"/account/tokens/{token.pk}/revoke")
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_the_theme_is_remembered_and_drawn_by_the_server(sign_in):
    client = sign_in("viewer")

    client.post("/account/theme", {"theme": "dark"}, content_type="application/json")

    assert b'data-theme="dark"' in client.get("/account").content
    assert client.post("/account/theme", {"theme": "pink"}, content_type="application/json").status_code == 422


def test_a_new_password_keeps_this_session_and_ends_the_others(sign_in):
    here, there = sign_in("viewer"), Client()
    there.force_login(User.objects.get(username="a-viewer"))

    here.post("/account/password", {"new_password1": "a long enough one", "new_password2": "a long enough one"})

    assert here.get("/account").status_code == 200
    assert there.get("/account").status_code == 302
