"""`manage.py picture GROUP --out FILE`: a trained group's packed row as an SVG; docs/images/group.svg is one.

From:  the members of the group as they were trained.
To:    training.picture.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = (
        "Draw what a trained group was computed as: shared prefixes once, trained tokens coloured by their advantage."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("group", type=UUID, help="Id of the group, from the address of its page.")
        parser.add_argument("--out", type=Path, required=True, help="The SVG file to write.")

    def handle(self, *args: Any, group: UUID, out: Path, **options: Any) -> None:
        from training.config import RunConfig
        from training.models import Group, Member
        from training.picture import Drawn, draw
        from training.policy_batch import load_trained_members

        found = Group.objects.select_related("attempt").filter(pk=group).first()
        if found is None:
            raise CommandError(f"There is no group {group}.")
        trained = Member.objects.filter(group=found, disposition=Member.Disposition.TRAINED)
        members = list(trained.select_related("rollout").order_by("slot", "refill"))
        rollouts = load_trained_members(members, RunConfig.model_validate(found.attempt.config))
        samples = [
            Drawn(
                sample=sample,
                advantages=advantages,
                label=f"reward {member.reward or 0:g}, advantage {member.advantage or 0:+.2f}",
            )
            for member, rollout in zip(members, rollouts, strict=True)
            for sample, advantages in zip(rollout.samples, rollout.advantages, strict=True)
        ]
        if not samples:
            raise CommandError(f"Nothing of group {group} was trained; choose one that a step has eaten.")
        out.write_text(draw(samples))
        self.stdout.write(f"{out}: {len(samples)} samples of {len(members)} rollouts")
