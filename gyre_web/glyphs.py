"""The small signs of the interface: what each state looks like, and the icons, as SVG paths.

From:  states and outcomes of rows (TextChoices values).
To:    the `status` and `icon` template tags; JSON for pages that draw states themselves.
Holds: every state has a shape of its own, so that colour is never alone.
"""

from dataclasses import dataclass

SHAPES: dict[str, str] = {
    "ring": '<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"/>',
    "ring-dotted": '<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"'
    ' stroke-dasharray="2 1.8"/>',
    "dot": '<circle cx="6" cy="6" r="4.5" fill="currentColor"/>',
    "half": '<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    '<path d="M6 2a4 4 0 0 1 0 8z" fill="currentColor"/>',
    "quarter": '<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    '<path d="M6 2a4 4 0 0 1 4 4H6z" fill="currentColor"/>',
    "bars": '<path d="M3 2h2v8H3zM7 2h2v8H7z" fill="currentColor"/>',
    "square": '<rect x="2" y="2" width="8" height="8" rx="1" fill="currentColor"/>',
    "check": '<path d="M1.800 6.400 4.700 9.200 10.200 3" fill="none" stroke="currentColor" stroke-width="1.8"'
    ' stroke-linecap="round" stroke-linejoin="round"/>',
    "cross": '<path d="m2.500 2.500 7 7m0-7-7 7" fill="none" stroke="currentColor" stroke-width="1.8"'
    ' stroke-linecap="round"/>',
    "slash": '<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    '<path d="m3.200 8.800 5.600-5.600" stroke="currentColor" stroke-width="1.5"/>',
    "triangle": '<path d="M6 1.500 11 10.500H1z" fill="none" stroke="currentColor" stroke-width="1.5"'
    ' stroke-linejoin="round"/><path d="M6 4.800v2.400m0 1v.6" stroke="currentColor" stroke-width="1.2"/>',
    "clock": '<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    '<path d="M6 3.600V6l1.700 1.200" fill="none" stroke="currentColor" stroke-width="1.3"/>',
    "diamond": '<path d="M6 1.300 10.700 6 6 10.700 1.300 6z" fill="currentColor"/>',
    "diamond-open": '<path d="M6 1.800 10.200 6 6 10.200 1.800 6z" fill="none" stroke="currentColor"'
    ' stroke-width="1.5"/>',
    "hand": '<rect x="2" y="2" width="8" height="8" rx="1" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    '<path d="M6 4v4M4 6h4" stroke="currentColor" stroke-width="1.2"/>',
    "up": '<path d="M6 10V2.500M2.800 5.500 6 2.300l3.200 3.200" fill="none" stroke="currentColor" stroke-width="1.5"/>',
    "minus": '<path d="M2.500 6h7" stroke="currentColor" stroke-width="1.8" stroke-linecap="round"/>',
}


@dataclass(frozen=True, kw_only=True)
class Glyph:
    """How one state looks."""

    shape: str
    tone: str = "muted"
    live: bool = False


STATES: dict[str, Glyph] = {
    # attempts and rollouts
    "queued": Glyph(shape="ring"),
    "starting": Glyph(shape="quarter", tone="accent"),
    "warming": Glyph(shape="half", tone="accent", live=True),
    "running": Glyph(shape="dot", tone="good", live=True),
    "verifying": Glyph(shape="diamond-open", tone="accent", live=True),
    "paused": Glyph(shape="bars", tone="warn"),
    "stopping": Glyph(shape="half", tone="warn", live=True),
    "completed": Glyph(shape="check", tone="good"),
    "stopped": Glyph(shape="square"),
    "cancelled": Glyph(shape="slash"),
    "failed": Glyph(shape="cross", tone="bad"),
    "ended": Glyph(shape="square"),
    # outcomes
    "harness_timeout": Glyph(shape="clock", tone="warn"),
    "budget_reached": Glyph(shape="minus", tone="warn"),
    "context_overflow": Glyph(shape="up", tone="warn"),
    "harness_crash": Glyph(shape="triangle", tone="bad"),
    "idle": Glyph(shape="ring-dotted"),
    "overall_timeout": Glyph(shape="clock", tone="bad"),
    "sandbox_failed": Glyph(shape="cross", tone="bad"),
    "image_unavailable": Glyph(shape="cross", tone="bad"),
    "verifier_error": Glyph(shape="triangle", tone="bad"),
    "lost": Glyph(shape="cross", tone="bad"),
    # images
    "wanted": Glyph(shape="ring"),
    "building": Glyph(shape="half", tone="accent", live=True),
    # groups, members
    "open": Glyph(shape="ring", tone="accent"),
    "ready": Glyph(shape="dot", tone="accent"),
    "held": Glyph(shape="hand", tone="warn"),
    "eaten": Glyph(shape="check", tone="good"),
    "excluded": Glyph(shape="slash"),
    "pending": Glyph(shape="ring"),
    "trained": Glyph(shape="check", tone="good"),
    # calls
    "aborted": Glyph(shape="slash"),
    "refused": Glyph(shape="minus", tone="warn"),
    # engines, cells, steps
    "serving": Glyph(shape="dot", tone="good"),
    "holding": Glyph(shape="bars", tone="warn"),
    "draining": Glyph(shape="half", tone="warn"),
    "serves": Glyph(shape="dot", tone="good"),
    "turning": Glyph(shape="half", tone="accent"),
    "trains": Glyph(shape="diamond", tone="accent"),
    "down": Glyph(shape="cross", tone="bad"),
    "requested": Glyph(shape="ring", tone="accent"),
    "training": Glyph(shape="diamond", tone="accent", live=True),
    "done": Glyph(shape="check", tone="good"),
    "dropped": Glyph(shape="triangle", tone="warn"),
    "writing": Glyph(shape="diamond", tone="accent", live=True),
    # events
    "info": Glyph(shape="ring"),
    "warning": Glyph(shape="triangle", tone="warn"),
    "error": Glyph(shape="cross", tone="bad"),
}

ICONS: dict[str, str] = {
    "gyre": '<path d="M10 10c0-1.100.9-2 2-2s2.600 1.100 2.600 2.800-1.800 3.900-4.400 3.900-5-2.200-5-5.200S7.600 4 11 4'
    'c2.300 0 4.200.8 5.600 2.200" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round"/>',
    "info": '<circle cx="10" cy="10" r="7.500" fill="none" stroke="currentColor" stroke-width="1.600"/>'
    '<path d="M10 9v5m0-8v.600" stroke="currentColor" stroke-width="1.800"/>',
    "plus": '<path d="M10 4v12M4 10h12" stroke="currentColor" stroke-width="1.800" stroke-linecap="round"/>',
    "play": '<path d="M6 4v12l10-6z" fill="currentColor"/>',
    "pause": '<path d="M5 4h3.500v12H5zm6.500 0H15v12h-3.500z" fill="currentColor"/>',
    "stop": '<rect x="5" y="5" width="10" height="10" rx="1" fill="currentColor"/>',
    "cancel": '<path d="m5 5 10 10M15 5 5 15" stroke="currentColor" stroke-width="2" stroke-linecap="round"/>',
    "close": '<path d="m5 5 10 10M15 5 5 15" stroke="currentColor" stroke-width="1.600" stroke-linecap="round"/>',
    "clone": '<rect x="7" y="7" width="9" height="9" rx="1" fill="none" stroke="currentColor" stroke-width="1.600"/>'
    '<path d="M4 13V4h9" fill="none" stroke="currentColor" stroke-width="1.600"/>',
    "search": '<circle cx="9" cy="9" r="5" fill="none" stroke="currentColor" stroke-width="1.600"/>'
    '<path d="m13 13 4 4" stroke="currentColor" stroke-width="1.600" stroke-linecap="round"/>',
    "wall": '<path d="M3.500 3.500h5v5h-5zm8 0h5v5h-5zm-8 8h5v5h-5zm8 0h5v5h-5z" fill="none"'
    ' stroke="currentColor" stroke-width="1.500"/>',
    "list": '<path d="M3 5h14M3 10h14M3 15h14" stroke="currentColor" stroke-width="1.600"/>',
    "user": '<circle cx="10" cy="7" r="3.200" fill="none" stroke="currentColor" stroke-width="1.600"/>'
    '<path d="M4 17c.6-3.400 3-5 6-5s5.400 1.600 6 5" fill="none" stroke="currentColor" stroke-width="1.600"/>',
    "theme": '<circle cx="10" cy="10" r="6.500" fill="none" stroke="currentColor" stroke-width="1.600"/>'
    '<path d="M10 3.500a6.500 6.500 0 0 1 0 13z" fill="currentColor"/>',
    "keys": '<rect x="2.500" y="5.500" width="15" height="9" rx="1.500" fill="none" stroke="currentColor"'
    ' stroke-width="1.500"/><path d="M5.500 8.500h1m2 0h1m2 0h1m2 0h.500M6 11.500h8" stroke="currentColor"'
    ' stroke-width="1.500"/>',
    "right": '<path d="m7.500 4.500 5.500 5.500-5.500 5.500" fill="none" stroke="currentColor" stroke-width="1.600"/>',
    "down": '<path d="m4.500 7.500 5.500 5.500 5.500-5.500" fill="none" stroke="currentColor" stroke-width="1.600"/>',
    "copy": '<rect x="7" y="7" width="9" height="9" rx="1" fill="none" stroke="currentColor" stroke-width="1.600"/>'
    '<path d="M4 13V4h9" fill="none" stroke="currentColor" stroke-width="1.600"/>',
}


def glyph_of(state: str) -> Glyph:
    """How a state looks; an unknown one gets a dotted ring, never nothing."""
    return STATES.get(state, Glyph(shape="ring-dotted"))
