"""Who may do what. Every view says it on its first line.

Holds: roles are ordered (viewer < reviewer < operator < admin); reading needs a signed-in viewer, judging a
reviewer, starting and steering runs an operator, people an admin.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from gyre_web.accounts.models import User

View = Callable[..., HttpResponseBase]


def has_role(user: User | AnonymousUser, role: str) -> bool:
    """False also for people who are not signed in or no longer active."""
    return isinstance(user, User) and user.has_role(role)


def check_role(user: User | AnonymousUser, role: str) -> User:
    """The user, if they have at least this role; else PermissionDenied with words for the page."""
    if not isinstance(user, User) or not user.has_role(role):
        raise PermissionDenied(f"This needs the role {role}. An admin can give it to you on the people page.")
    return user


def require_role(role: str) -> Callable[[View], View]:
    """Decorator of a view: 403 without the role. (Signing in itself is asked for by SignInMiddleware.)"""

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            check_role(request.user, role)
            return view(request, *args, **kwargs)

        return checked

    return decorate


def signed_in(request: HttpRequest) -> User:
    """The person behind a request that passed SignInMiddleware."""
    return check_role(request.user, User.Role.VIEWER)
