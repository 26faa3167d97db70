"""Template tags that every page uses: states, times, numbers, hints, small pictures.

Holds: whatever came from outside is escaped; nothing here emits inline style or script.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import orjson
from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from gyre_web.glyphs import ICONS, SHAPES, glyph_of

register = template.Library()

NOT_RECORDED = "This was not recorded."


@register.simple_tag
def status(state: str, word: str = "") -> SafeString:
    """A state as glyph and word: `{% status rollout.state rollout.get_state_display %}`."""
    glyph = glyph_of(str(state))
    svg = mark_safe(SHAPES[glyph.shape])  # our own constant
    live = " is-live" if glyph.live else ""
    return format_html(
        '<span class="status tone-{}{}"><svg viewBox="0 0 12 12" aria-hidden="true">{}</svg>'
        '<span class="status-word">{}</span></span>',
        glyph.tone,
        live,
        svg,
        sentence(word or str(state).replace("_", " ")),
    )


def sentence(word: str) -> str:
    """With a capital first letter, the rest as it is."""
    return word[:1].upper() + word[1:]


@register.simple_tag
def icon(name: str, size: int = 16) -> SafeString:
    """One of gyre_web.glyphs.ICONS, in the colour of the text around it."""
    path = mark_safe(ICONS[name])  # our own constant
    return format_html(
        '<svg class="icon" viewBox="0 0 20 20" width="{}" height="{}" aria-hidden="true">{}</svg>', size, size, path
    )


@register.simple_tag
def hint(text: str, key: str = "") -> SafeString:
    """An `i` that explains a number: its definition, and its raw key where it has one. Behaviour in js/base.js."""
    if not text:
        return mark_safe("")
    return format_html(
        '<button type="button" class="hint" aria-label="What is this?" data-hint="{}" data-key="{}">{}</button>',
        text,
        key,
        icon("info", 12),
    )


@register.simple_tag
def ago(moment: datetime | None, absent: str = "never") -> SafeString:
    """A relative time; js/base.js keeps it fresh and puts the absolute one, in the viewer's zone, on hover."""
    if moment is None:
        return format_html('<span class="faint">{}</span>', absent)
    stamp = moment.isoformat()
    return format_html('<time datetime="{}" data-ago title="{}">{}</time>', stamp, stamp, relative(moment))


def relative(moment: datetime, now: datetime | None = None) -> str:
    """`just now`, `3 min ago`, `2 h ago`, `5 d ago`."""
    seconds = ((now or timezone.now()) - moment).total_seconds()
    if seconds < 0:
        return f"in {duration_text(-seconds)}"
    return "just now" if seconds < 5 else f"{duration_text(seconds)} ago"


def duration_text(seconds: float) -> str:
    """`42 s`, `3 min`, `2.5 h`, `4 d`: two figures at most, the unit always."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    for size, unit in ((60, "s"), (3600, "min"), (86400, "h")):
        if seconds < size:
            value = seconds / {"s": 1, "min": 60, "h": 3600}[unit]
            return f"{value:.1f} {unit}".replace(".0 ", " ") if value < 10 and unit == "h" else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds for people; an en dash where there are none."""
    return "–" if seconds is None else duration_text(float(seconds))


@register.filter
def count(number: float | None) -> str:
    """Whole numbers with thousands apart (412,880); an en dash for none."""
    return "–" if number is None else f"{number:,.0f}"


@register.filter
def compact(number: float | None) -> str:
    """`412.9k`, `1.2M`: for narrow cells."""
    if number is None:
        return "–"
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            value = number / (1e3 if unit == "k" else size)
            return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"
    return f"{number:,.0f}"


@register.filter
def figure(number: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without exponent where it can be read without."""
    if number is None:
        return "–"
    if number == 0:
        return "0"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.{digits}g}"


@register.filter
def fixed(number: float | None, digits: int = 2) -> str:
    return "–" if number is None else f"{number:.{digits}f}"


@register.filter
def percent(share: float | None, digits: int = 0) -> str:
    """0.367 -> 37 %."""
    return "–" if share is None else f"{share * 100:.{digits}f} %"


@register.filter
def short_id(value: Any) -> str:
    """The first eight characters of a UUID: enough to tell apart, the whole is in the address."""
    return str(value)[:8]


@register.filter
def pretty_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()


@register.simple_tag
def not_recorded(why: str = NOT_RECORDED) -> SafeString:
    """The designed state of a value that does not exist, which is not 0 and not empty."""
    return format_html('<span class="not-recorded" title="{}">not recorded</span>', why)


@register.simple_tag
def sparkline(values: Sequence[float | None], width: int = 96, height: int = 24, label: str = "") -> SafeString:
    """A line of numbers as inline SVG; the scale is its own range, the last point is marked."""
    points = [(i, v) for i, v in enumerate(values) if v is not None]
    if len(points) < 2:
        return format_html('<span class="faint">{}</span>', "–" if not points else f"{points[0][1]:.2f}")
    low, high = min(v for _, v in points), max(v for _, v in points)
    span, last = (high - low) or 1.0, points[-1][0] or 1
    spots = [
        (round(2 + i / last * (width - 4), 1), round(height - 3 - (v - low) / span * (height - 6), 1))
        for i, v in points
    ]
    path = " ".join(f"{x},{y}" for x, y in spots)
    return format_html(
        '<svg class="spark" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
        '<line class="spark-base" x1="2" x2="{right}" y1="{base}" y2="{base}"/>'
        '<polyline class="spark-line" points="{path}"/><circle class="spark-dot" cx="{x}" cy="{y}" r="2"/></svg>',
        w=width,
        h=height,
        right=width - 2,
        base=height - 0.5,
        path=path,
        x=spots[-1][0],
        y=spots[-1][1],
        label=label or f"from {points[0][1]:.3g} to {points[-1][1]:.3g}",
    )


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """The page's own query string with changes; `None` removes a key. For sort and page links."""
    parameters = context["request"].GET.copy()
    for key, value in changes.items():
        if value is None or value == "":
            parameters.pop(key, None)
        else:
            parameters[key] = str(value)
    encoded = parameters.urlencode()
    return f"?{encoded}" if encoded else "?"


@register.filter
def split_words(text: str) -> list[str]:
    return text.split()


@register.filter
def config_value(value: Any) -> str:
    """A config value for people: lists by commas, none as a word."""
    from gyre_web.runs.form_views import show_value

    return show_value(value)


@register.simple_tag
def event_glyph(level: str) -> SafeString:
    """The sign of an event's level, with the level as a word for screen readers."""
    svg = mark_safe(SHAPES[glyph_of(level).shape])  # our own constant
    return format_html(
        '<svg viewBox="0 0 12 12" aria-hidden="true">{}</svg><span class="visually-hidden">{}</span>', svg, level
    )


@register.filter
def signed(number: float) -> str:
    """+0.71, −0.29, 0.00: with a real minus sign."""
    return f"{number:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")


@register.simple_tag
def reward_square(reward: float) -> SafeString:
    """A square in the colour of the reward scale, filled from below to its height."""
    share = min(1.0, max(0.0, reward))
    return format_html(
        '<svg width="8" height="12" aria-hidden="true"><rect class="r0" width="8" height="12" rx="1"/>'
        '<rect class="r{}" y="{}" width="8" height="{}" rx="1"/></svg>',
        round(5 * share),
        round(12 * (1 - share), 1),
        round(12 * share, 1),
    )


@register.filter
def urlencode_query(query: dict[str, Any]) -> str:
    return urlencode(query)


@register.filter
def compact_json(value: Any) -> str:
    """One line of JSON, as people read it: `{"wanted": "pause"}`."""
    return json.dumps(value, ensure_ascii=False, default=str)


@register.simple_tag
def rate_bar(passed: int, scored: int) -> SafeString:
    """A share as number and bar."""
    share = passed / scored if scored else 0.0
    return format_html(
        '<span class="rate-bar"><span>{} %</span><svg width="48" height="6" aria-hidden="true">'
        '<rect class="r0" width="48" height="6" rx="1"/><rect class="r4" width="{}" height="6" rx="1"/></svg></span>',
        round(100 * share),
        round(48 * share, 1),
    )


@register.filter
def size(num_bytes: float | None) -> str:
    """1,614,000,000 -> 1.6 GB."""
    if num_bytes is None:
        return "–"
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= limit:
            return f"{num_bytes / limit:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


@register.filter
def times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


@register.simple_tag
def gauge(share: float) -> SafeString:
    """A share, 0 to 1, as a bar with its number."""
    share = min(1.0, max(0.0, share))
    return format_html(
        '<span class="gauge"><svg width="64" height="6" aria-hidden="true"><rect class="gauge-ground" width="64"'
        ' height="6" rx="1"/><rect class="gauge-fill" width="{}" height="6" rx="1"/></svg><span>{} %</span></span>',
        round(64 * share, 1),
        round(100 * share),
    )


@register.simple_tag
def so_far(moment: datetime) -> str:
    """How long something has been going on: `9 min so far`."""
    return f"{duration_text(max(0.0, (timezone.now() - moment).total_seconds()))} so far"
