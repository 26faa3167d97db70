"""Training's view of one rollout: reward as judged, advantage, and what became of it. Never silently dropped."""

from django.db import models


class Member(models.Model):
    class Disposition(models.TextChoices):
        PENDING = "pending"
        HELD = "held"
        TRAINED = "trained"
        EXCLUDED = "excluded"

    class Include(models.TextChoices):
        AS_SCORED = "as_scored", "as scored"
        KEEP = "keep", "keep (a person said so)"
        DROP = "drop", "drop (a person said so)"

    group = models.ForeignKey("training.Group", on_delete=models.CASCADE, related_name="members")
    rollout = models.OneToOneField("environments.Rollout", on_delete=models.PROTECT, related_name="member")
    slot = models.PositiveSmallIntegerField(help_text="0 to N-1; a refill takes the slot of the member it replaces.")
    refill = models.PositiveSmallIntegerField(default=0, help_text="How often this slot was refilled before.")
    effective_reward = models.FloatField(null=True, help_text="A person's override, else null: the verifier's stands.")
    include = models.CharField(max_length=10, choices=Include.choices, default=Include.AS_SCORED)
    turn_marks = models.JSONField(
        default=dict, help_text='{"<node index>": true (right) or false (wrong)}: a person\'s, as training uses them.'
    )
    hold = models.BooleanField(default=False, help_text="Waits for a person before its group may be eaten.")
    hold_reason = models.CharField(max_length=200, blank=True)
    hold_until = models.DateTimeField(null=True)
    disposition = models.CharField(max_length=10, choices=Disposition.choices, default=Disposition.PENDING)
    reason = models.CharField(max_length=200, blank=True)
    advantage = models.FloatField(null=True)
    staleness = models.IntegerField(null=True, help_text="Version in training minus oldest sampling version.")
    trained_tokens = models.PositiveIntegerField(default=0)
    num_samples = models.PositiveSmallIntegerField(default=0)
    token_stats = models.JSONField(
        default=dict,
        help_text="Per node index: base64 float32 trainer_logprobs and uint8 loss_mask, and its advantage, for the token view.",
    )

    class Meta:
        ordering = ("group", "slot", "refill")
        constraints = [models.UniqueConstraint(fields=("group", "slot", "refill"), name="member_slot_unique")]

    @property
    def reward(self) -> float | None:
        """What training uses: the override where there is one, else the verifier's number."""
        return self.rollout.reward if self.effective_reward is None else self.effective_reward
