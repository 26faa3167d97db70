"""Stand-ins for everything around the controller: they act on rows only, as the real processes would."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from environments.models import Outcome, Rollout
from tests.training.factories import end_rollout
from training.config import RunConfig
from training.models import Attempt, Cell, Group, Member, OptimizerStep, Version
from training.scheduling.controller import Controller
from training.scheduling.leadership import Leadership
from training.scheduling.steps import due_version


@dataclass(kw_only=True)
class World:
    """Workers that end what is dispatched, a cell that does what it is told, a trainer that steps."""

    attempt_id: UUID
    controller: Controller = field(default_factory=lambda: Controller(leadership=Leadership(lease_s=0.0)))

    @property
    def attempt(self) -> Attempt:
        return Attempt.objects.get(pk=self.attempt_id)

    @property
    def config(self) -> RunConfig:
        return RunConfig.model_validate(self.attempt.config)

    def rollouts(self, purpose: str = "train") -> QuerySet[Rollout]:
        return Rollout.objects.filter(pool__startswith=self.attempt.pool, purpose=purpose).order_by("created_at")

    def unfinished(self, purpose: str = "train") -> QuerySet[Rollout]:
        return self.rollouts(purpose).exclude(state=Rollout.State.ENDED)

    def groups(self) -> QuerySet[Group]:
        return Group.objects.filter(attempt_id=self.attempt_id).order_by("index")

    def round(self) -> bool:
        return self.controller.round()

    def end_rollouts(self, purpose: str = "train") -> int:
        """Rewards alternate, so that groups have a signal."""
        ids = list(self.unfinished(purpose).values_list("id", flat=True))
        for number, rollout_id in enumerate(ids):
            end_rollout(rollout_id, reward=float(number % 2 == 0))
        Rollout.objects.filter(id__in=ids).update(oldest_version=self.attempt.version)
        return len(ids)

    def cells(self) -> None:
        for cell in Cell.objects.filter(attempt_id=self.attempt_id).exclude(role=F("wanted_role")):
            cell.role = cell.wanted_role
            cell.save(update_fields=["role"])
        if Cell.objects.filter(attempt_id=self.attempt_id, role=Cell.Role.SERVES).exists():
            Version.objects.filter(attempt_id=self.attempt_id, published_at=None).update(
                published_at=timezone.now(), publish_s=0.5
            )

    @transaction.atomic
    def trainer(self) -> None:
        attempt = Attempt.objects.select_for_update(no_key=True).get(pk=self.attempt_id)
        if not attempt.cells.filter(role=Cell.Role.TRAINS).exists():
            return
        waiting = self.unfinished("demonstration").exists()
        if attempt.state == Attempt.State.WARMING and not waiting:
            Version.objects.get_or_create(attempt=attempt, number=0)
        step = OptimizerStep.objects.filter(attempt=attempt, state=OptimizerStep.State.REQUESTED).first()
        if step is None:
            return
        groups = Group.objects.filter(step=step)
        Member.objects.filter(group__in=groups, disposition="pending").update(disposition="trained")
        groups.update(state=Group.State.EATEN)
        step.state = OptimizerStep.State.DONE
        step.save()
        attempt.step += 1
        attempt.save(update_fields=["step"])
        if due_version(attempt, self.config) > attempt.version:
            number = due_version(attempt, self.config)
            Version.objects.get_or_create(attempt=attempt, number=number, defaults={"step": attempt.step})

    def others(self) -> None:
        """Everybody but the controller does what there is to do."""
        for purpose in ("demonstration", "evaluation", "train"):
            self.end_rollouts(purpose)
        self.cells()
        self.trainer()

    def run_until(self, reached: Callable[[], bool], *, rounds: int = 200) -> None:
        for _ in range(rounds):
            if reached():
                return
            self.round()
            self.others()
        raise AssertionError(f"not reached: {self.attempt.state}, {self.attempt.phase}")

    def go_online(self) -> None:
        """Up to the first groups, none of whose rollouts has ended."""
        for _ in range(50):
            self.round()
            if self.unfinished().exists():
                return
            self.end_rollouts("demonstration")
            self.end_rollouts("evaluation")
            self.cells()
            self.trainer()
        raise AssertionError(f"no group was dispatched: {self.attempt.state}, {self.attempt.phase}")

    def fail_rollout(self, rollout: Rollout) -> None:
        end_rollout(rollout.id, outcome=Outcome.LOST, reward=None)
