"""A database of an earlier pre-release is refused in words, not found out by a missing column."""

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

pytestmark = pytest.mark.django_db


def test_a_database_of_this_checkout_is_accepted_again():
    call_command("migrate", verbosity=0)


@pytest.mark.parametrize("comment", ["'gyre 0123456789abcdef'", "NULL"])
def test_a_database_of_another_checkout_is_refused_with_the_remedy(comment):
    with connection.cursor() as cursor:
        cursor.execute(f"COMMENT ON TABLE django_migrations IS {comment}")
    with pytest.raises(CommandError, match="GYRE_DATA"):
        call_command("migrate", verbosity=0)
