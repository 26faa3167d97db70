"""Write down who changed what.

From:  services and views, in the transaction that makes the change.
To:    AuditEntry rows; the audit page and REST read them.
Holds: names of people and objects are kept as text, so that entries outlive them.
"""

from typing import Any

import orjson
from django.db.models import Model
from django.http import HttpRequest

from gyre_web.accounts.models import User
from gyre_web.audit.middleware import current_request_id
from gyre_web.audit.models import AuditEntry


def record(
    request_or_user: HttpRequest | User | None,
    action: str,
    obj: Model,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> AuditEntry:
    """One entry. `None` as user: Gyre itself did it (first start, a deadline). Values become plain JSON."""
    user = request_or_user.user if isinstance(request_or_user, HttpRequest) else request_or_user
    person = user if isinstance(user, User) else None
    return AuditEntry.objects.create(
        user=person,
        user_name=person.username if person else "Gyre",
        action=action,
        object_type=obj._meta.model_name or "",
        object_id=str(obj.pk),
        before=plain(before),
        after=plain(after),
        reason=reason,
        request_id=current_request_id.get(),
    )


def plain(value: Any) -> Any:
    """What JSON can hold: UUIDs, times and the like as text."""
    return None if value is None else orjson.loads(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))
