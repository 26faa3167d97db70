"""Who asks: a token (`Authorization: Bearer gyre_...`) or the session of a signed-in browser.

Holds: a token never exceeds its scope nor its owner's role; a session needs the CSRF token for changes.
"""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.security import HttpBearer
from ninja.security.session import SessionAuth

from gyre_web.accounts.models import ApiToken, User
from gyre_web.accounts.services import find_token

SCOPE_ROLE = {
    ApiToken.Scope.READ: User.Role.VIEWER,
    ApiToken.Scope.REVIEW: User.Role.REVIEWER,
    ApiToken.Scope.OPERATE: User.Role.OPERATOR,
}


@dataclass(frozen=True, kw_only=True)
class Caller:
    """scope: None for a browser's session, which may do whatever its person may."""

    user: User
    scope: ApiToken.Scope | None = None

    def may(self, role: User.Role) -> bool:
        if not self.user.has_role(role):
            return False
        if self.scope is None:
            return True
        ranks = list(User.Role)
        return ranks.index(SCOPE_ROLE[self.scope]) >= ranks.index(role)


class TokenAuth(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        found = find_token(token)
        if found is None:
            return None
        request.user = found.user
        return Caller(user=found.user, scope=ApiToken.Scope(found.scope))


class BrowserAuth(SessionAuth):
    def authenticate(self, request: HttpRequest, key: str | None) -> Caller | None:
        user = request.user
        return Caller(user=user) if isinstance(user, User) and user.is_active else None


def access(request: HttpRequest, role: User.Role) -> Caller:
    """The caller, if they may act in this role; else 403 with the reason."""
    caller: Any = getattr(request, "auth", None)
    if not isinstance(caller, Caller) or not caller.may(role):
        scope = (
            f" and a token of scope that allows it (yours: {caller.scope})" if getattr(caller, "scope", None) else ""
        )
        raise HttpError(403, f"This needs the role {role}{scope}.")
    return caller
