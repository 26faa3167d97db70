"""Who uses Gyre: own user model with one role, one-time sign-in links, API tokens (hashed)."""

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    class Role(models.TextChoices):
        VIEWER = "viewer"
        REVIEWER = "reviewer"
        OPERATOR = "operator"
        ADMIN = "admin"

    class Theme(models.TextChoices):
        SYSTEM = "system"
        LIGHT = "light"
        DARK = "dark"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    theme = models.CharField(max_length=6, choices=Theme.choices, default=Theme.SYSTEM)

    @property
    def sees_audit(self) -> bool:
        return self.has_role(self.Role.OPERATOR)

    def has_role(self, role: str) -> bool:
        """Roles are ordered: an operator may do all that a reviewer may."""
        ranks = list(self.Role)
        return self.is_active and ranks.index(self.Role(self.role)) >= ranks.index(self.Role(role))


class SignInLink(models.Model):
    """A one-time link, for the first admin and for people without a password."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sign_in_links")
    digest = models.CharField(max_length=64, unique=True, help_text="sha256 of the token in the link.")
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class ApiToken(models.Model):
    class Scope(models.TextChoices):
        READ = "read"
        REVIEW = "review"
        OPERATE = "operate"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, help_text="First characters, to tell tokens apart.")
    digest = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=10, choices=Scope.choices, default=Scope.READ)
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
