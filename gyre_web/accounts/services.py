"""Make people, one-time links and API tokens, and use them up.

Holds: a secret is shown once and stored as its sha256; a link works once, before it expires.
Never: sends anything anywhere; whoever makes a link hands it over.
"""

import hashlib
import secrets
from datetime import timedelta

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from gyre_web.accounts.models import ApiToken, SignInLink, User

LINK_LIFETIME = timedelta(days=2)
TOKEN_MARK = "gyre_"
FIRST_ADMIN = "admin"


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def first_admin_link() -> str | None:
    """Path of a one-time link for the first admin, made if nobody could sign in yet; None once somebody did.

    Called by `manage.py up` at each start: until the first sign-in every start gives a fresh link.
    """
    if User.objects.filter(last_login__isnull=False).exists():
        return None
    admin, _ = User.objects.get_or_create(username=FIRST_ADMIN, defaults={"role": User.Role.ADMIN})
    return create_link(user=admin)


@transaction.atomic
def create_link(*, user: User) -> str:
    """Path of a fresh one-time sign-in link; the person's earlier unused links stop working."""
    SignInLink.objects.filter(user=user, used_at=None).delete()
    secret = secrets.token_urlsafe(32)
    SignInLink.objects.create(user=user, digest=digest_of(secret), expires_at=timezone.now() + LINK_LIFETIME)
    return reverse("accounts:link", args=[secret])


def find_link(secret: str) -> SignInLink | None:
    """The unused, unexpired link of an active person with this secret."""
    return (
        SignInLink.objects.select_related("user")
        .filter(digest=digest_of(secret), used_at=None, expires_at__gt=timezone.now(), user__is_active=True)
        .first()
    )


def use_link(secret: str) -> User | None:
    """Whose link it was, and it is used up; None when it was used, expired or never made."""
    link = find_link(secret)
    if link is None:
        return None
    used = SignInLink.objects.filter(pk=link.pk, used_at=None).update(used_at=timezone.now())
    return link.user if used else None


@transaction.atomic
def create_person(*, username: str, role: str, full_name: str = "") -> tuple[User, str]:
    """A person without a password, and the path of their one-time link."""
    first, _, last = full_name.strip().partition(" ")
    user = User(username=username, role=role, first_name=first, last_name=last)
    user.set_unusable_password()
    user.full_clean(exclude=["password"])
    user.save()
    return user, create_link(user=user)


def create_token(*, user: User, name: str, scope: str) -> tuple[ApiToken, str]:
    """The row and the token itself, which is shown this once."""
    secret = TOKEN_MARK + secrets.token_urlsafe(30)
    token = ApiToken.objects.create(user=user, name=name, scope=scope, prefix=secret[:12], digest=digest_of(secret))
    return token, secret


def find_token(secret: str) -> ApiToken | None:
    """The live token of an active person; its use is noted at most once a minute."""
    token = (
        ApiToken.objects.select_related("user")
        .filter(digest=digest_of(secret), revoked_at=None, user__is_active=True)
        .first()
    )
    now = timezone.now()
    if token and (token.last_used_at is None or now - token.last_used_at > timedelta(minutes=1)):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def revoke_token(*, token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())
