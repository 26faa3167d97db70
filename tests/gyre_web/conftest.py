"""People of every role, signed in, for the tests of pages."""

from collections.abc import Callable

import pytest
from django.test import Client

from gyre_web.accounts.models import User
from tests.gyre_web.factories import make_user

ROLES = list(User.Role)


@pytest.fixture
def sign_in(db: None) -> Callable[[str], Client]:
    """`sign_in("operator")`: a client of a person with that role; `sign_in("")`: a stranger."""

    def make(role: str) -> Client:
        client = Client()
        if role:
            client.force_login(make_user(f"a-{role}", role))
        return client

    return make
