"""What can be told about the look without eyes: contrast, nothing inline, every state has its own shape."""

import re
from pathlib import Path

import pytest
from django.conf import settings

from environments.models import Call, Engine, Outcome, Rollout
from gyre_web.glyphs import ICONS, SHAPES, STATES
from training.models import Attempt, Cell, Group, Member, OptimizerStep

CSS = Path(settings.BASE_DIR) / "static" / "css"
TEMPLATES = Path(settings.BASE_DIR) / "templates"
TEXT_ON = {
    "--bg": ("--text", "--text-muted", "--text-faint", "--accent", "--good", "--warn", "--bad"),
    "--surface": ("--text", "--text-muted", "--text-faint", "--accent", "--good", "--warn", "--bad"),
    "--float": ("--text", "--text-muted", "--accent", "--bad"),
    "--hover": ("--text", "--text-muted", "--text-faint", "--accent"),
    "--sunken": ("--text", "--text-muted"),
    "--accent": ("--on-accent",),
    "--accent-soft": ("--text", "--accent-strong"),
    "--warn-soft": ("--text", "--warn"),
    "--bad-soft": ("--text", "--bad"),
    "--good-soft": ("--text", "--good"),
}


def roles() -> dict[str, str]:
    text = (CSS / "tokens.css").read_text()
    return dict(re.findall(r"^\s*(--[\w-]+):\s*([^;]+);", text, re.MULTILINE))


def resolve(name: str, found: dict[str, str], dark: bool) -> str:
    value = found[name]
    if value.startswith("light-dark("):
        value = value.removeprefix("light-dark(").removesuffix(")").split(", ")[dark]
    return resolve(value[4:-1], found, dark) if value.startswith("var(") else value


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_has_aa_contrast_in_light_and_dark():
    found = roles()
    for dark in (False, True):
        for ground, texts in TEXT_ON.items():
            for text in texts:
                ratio = contrast(resolve(text, found, dark), resolve(ground, found, dark))
                assert ratio >= 4.5, f"{text} on {ground} ({'dark' if dark else 'light'}): {ratio:.2f}"


def test_borders_of_controls_can_be_told_from_the_ground():
    found = roles()
    for dark in (False, True):
        assert contrast(resolve("--line-control", found, dark), resolve("--surface", found, dark)) >= 3.0


def test_no_template_has_inline_style_or_script():
    for path in TEMPLATES.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"\sstyle=", text), path
        assert "<style" not in text, path
        assert not re.search(r"\son[a-z]+=", text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path


@pytest.mark.parametrize("path", sorted(CSS.glob("*.css")), ids=lambda path: path.name)
def test_every_rule_of_a_stylesheet_is_closed_before_the_next_begins(path):
    """A merge that eats a brace nests all that follows, and nothing complains."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    depth = 0
    for line in text.splitlines():
        assert not depth or line[:1] in (" ", "}", ""), f"{line} stands within another rule"
        depth += line.count("{") - line.count("}")
    assert depth == 0


def test_every_variable_that_a_stylesheet_uses_is_defined():
    """An unknown one is no error to a browser: the rule is silently as if it were not there."""
    texts = {path.name: path.read_text() for path in CSS.glob("*.css")}
    scripts = "".join(path.read_text() for path in (CSS.parent / "js").rglob("*.js"))
    defined = {name for text in texts.values() for name in re.findall(r"(--[\w-]+)\s*:", text)}
    used = {(name, file) for file, text in texts.items() for name in re.findall(r"var\((--[\w-]+)\)", text)}
    assert [pair for pair in sorted(used) if pair[0] not in defined and pair[0] not in scripts] == []


def test_no_template_switches_escaping_off():
    for path in TEMPLATES.rglob("*.html"):
        assert not re.search(r"\|\s*safe\b|autoescape off", path.read_text()), path


def test_components_use_roles_and_never_raw_colours():
    for path in CSS.glob("*.css"):
        if path.name not in ("tokens.css", "lenses.css"):  # the two palettes
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)", path.read_text()), path


def test_every_state_that_rows_can_have_has_a_sign():
    choices = (
        Attempt.State, Rollout.State, Outcome, Group.State, Member.Disposition, Engine.State, Cell.Role,
        OptimizerStep.State, Call.State,
    )  # fmt: skip
    for states in choices:
        for state in states.values:
            assert state in STATES, state


def test_signs_are_drawn_with_shapes_that_exist():
    for state, glyph in STATES.items():
        assert glyph.shape in SHAPES, state
    assert "gyre" in ICONS


def test_every_static_file_that_pages_name_is_served_without_collecting(client):
    names = set()
    for path in TEMPLATES.rglob("*.html"):
        names |= set(re.findall(r"{% static '([^']+)' %}", path.read_text()))
    assert {"css/tokens.css", "plotly/plotly.min.js", "django_htmx/htmx-2.min.js"} <= names
    for name in sorted(names):
        assert client.get(f"/static/{name}").status_code == 200, name
