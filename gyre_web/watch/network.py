"""What a rollout's sandbox asked of the network.

From:  EgressRequest rows (environments.egress).
To:    the Network tab of the rollout page, as JSON.
Never: writes.
"""

from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from environments.egress.rules import allowed_rules
from environments.models import EgressRequest, Rollout

MAX_SHOWN = 500


def load_network(rollout: Rollout) -> dict[str, Any]:
    environment = rollout.task.settings.get("environment") or {}
    rules = [str(rule) for rule in allowed_rules(environment)]
    denied = Count("pk", filter=Q(verdict=EgressRequest.Verdict.DENIED))
    totals = rollout.egress_requests.aggregate(number=Count("pk"), denied=denied)
    start = rollout.started_at or rollout.created_at
    return {
        **totals,
        "allowed": ["every public host" if rule == "*" else rule for rule in rules],
        "wish": describe_wish(environment, rules),
        "live": rollout.is_live,
        "requests": [describe_request(row, start) for row in rollout.egress_requests.all()[:MAX_SHOWN]],
    }


def describe_wish(environment: dict[str, Any], rules: list[str]) -> str:
    if environment.get("allow_internet") and not rules:
        return "The task asks for the whole internet, which this installation does not give (GYRE_EGRESS_ANY)."
    return ""


def describe_request(row: EgressRequest, start: datetime) -> dict[str, Any]:
    names = ("at", "method", "host", "port", "verdict", "reason", "sent_bytes", "received_bytes", "duration_s")
    return {name: getattr(row, name) for name in names} | {"after_s": max(0.0, (row.at - start).total_seconds())}
