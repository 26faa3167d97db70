"""What people start from the rollout page.

From:  gyre_web.watch.views, gyre_web.api.
To:    environments.forks; the audit log, in the same transaction.
"""

from django.db import transaction
from django.http import HttpRequest

from environments.forks import fork_rollout
from environments.models import Rollout
from gyre_web.accounts.models import User
from gyre_web.audit.services import record


@transaction.atomic
def start_forks(*, by: HttpRequest | User | None, original: Rollout, call_index: int, count: int) -> list[Rollout]:
    """`count` new rollouts from call `call_index` of this one. Raises ForkRefused."""
    forks = fork_rollout(original=original, call_index=call_index, count=count)
    record(by, "rollout.fork", original, after={"call_index": call_index, "forks": [str(fork.pk) for fork in forks]})
    return forks
