"""Add a model from the browser or REST: the same checks as everywhere, audited.

From:  gyre_web.catalog.views, gyre_web.api.
To:    environments.catalog.add_model.
Holds: nothing is stored while anything is wrong; what is wrong is named with its field.
Cost:  the first time in a process it imports transformers (4 s); a hub name is fetched before the answer.
"""

from environments.catalog import ModelError, add_model
from environments.models import Model
from gyre_web.accounts.models import User
from gyre_web.audit.services import record


def add_checked_model(
    *, name: str, path: str, renderer: str, author: User
) -> tuple[Model | None, list[tuple[str, str]]]:
    """(the model, nothing wrong) or (None, [(field, message)])."""
    before = Model.objects.filter(name=name).first()
    try:
        model = add_model(name.strip(), path.strip(), renderer.strip())
    except ModelError as error:
        return None, [(error.field, str(error))]
    record(
        author,
        "model.add",
        model,
        before={"path": before.path, "renderer": before.renderer} if before else None,
        after={"path": model.path, "renderer": model.renderer, "exact": model.settings["report"]["exact"]},
    )
    return model, []
