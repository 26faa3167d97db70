"""A group's packed row as a picture: what stands once, what is trained, and with which advantage.

From:  the samples of a group's rollouts, labelled (gyre_web's command `picture`).
To:    SVG text, readable on light and dark pages.
Holds: drawn from the layout that the trainer packs, so the picture is what is computed; one bar a run, in the order of
       the row; left is the beginning of a sample, so that a bar begins where it forks.
Never: reads rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from training.layout import Layout, Run, lay_out
from training.selection import Sample

WIDTH, LABEL, LANE, BAR, TOP = 860, 220, 18, 11, 30
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .quiet { fill: #656d76 } .fork { stroke: #8c959f; fill: none }
.context { fill: #d0d7de } .gain { fill: #1a7f37 } .loss { fill: #cf222e } .even { fill: #0969da }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9198a1 } .context { fill: #3d444d } .gain { fill: #3fb950 } .loss { fill: #f85149 }
.even { fill: #4493f8 } }
"""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One sample. advantages: [num_trained]. label: what stands beside its last bar."""

    sample: Sample
    advantages: npt.NDArray[np.float32]
    label: str


def draw(samples: Sequence[Drawn]) -> str:
    """SVG. Raises ValueError without samples."""
    if not samples:
        raise ValueError("there is no sample to draw")
    layout = lay_out([each.sample.ids for each in samples], share=True)
    kinds = classify(samples, layout)
    flat = sum(each.sample.num_tokens for each in samples)
    scale = (WIDTH - LABEL) / (int(layout.positions_T.max()) + 1)
    height = TOP + LANE * len(layout.runs) + 6
    head = f"{len(samples)} samples, {flat} tokens one by one; {layout.num_tokens} tokens computed ({flat / layout.num_tokens:.1f} times fewer)"
    body = [f'<text class="quiet" x="0" y="14">{escape(head)}</text>']
    labels = {int(layout.places[number][-1]): each.label for number, each in enumerate(samples)}
    for lane, run in enumerate(layout.runs):
        y = TOP + LANE * lane
        body += fork(layout, run, y, scale)
        body += bars(layout, run, kinds, y, scale)
        ends = [label for place, label in labels.items() if run.start <= place < run.stop]
        x = scale * (int(layout.positions_T[run.stop - 1]) + 1) + 6
        body.append(f'<text x="{x:.1f}" y="{y + BAR - 1}">{escape("; ".join(ends))}</text>')
    inner = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(head)}">\n<style>{STYLE}</style>\n{inner}\n</svg>\n'
    )


def classify(samples: Sequence[Drawn], layout: Layout) -> list[str]:
    """Of each place: context, or trained with an advantage above, below or at 0."""
    kinds = ["context"] * layout.num_tokens
    for each, places in zip(samples, layout.places, strict=True):
        for place, advantage in zip(places[each.sample.loss_mask], each.advantages, strict=True):
            kinds[int(place)] = "gain" if advantage > 0 else "loss" if advantage < 0 else "even"
    return kinds


def bars(layout: Layout, run: Run, kinds: Sequence[str], y: float, scale: float) -> Iterator[str]:
    for kind, places in groupby(range(run.start, run.stop), key=lambda place: kinds[place]):
        own = list(places)
        x, width = scale * int(layout.positions_T[own[0]]), scale * len(own)
        yield f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(width - 0.4, 0.4):.1f}" height="{BAR}"/>'


def fork(layout: Layout, run: Run, y: float, scale: float) -> Iterator[str]:
    """From the token that the run hangs from, straight down to its bar."""
    depth = int(layout.positions_T[run.start])
    above = np.flatnonzero((layout.positions_T[: run.start] == depth - 1) & (layout.ends_T[: run.start] > run.start))
    if len(above):
        lane = next(n for n, other in enumerate(layout.runs) if other.start <= above[-1] < other.stop)
        x = scale * depth
        yield f'<path class="fork" d="M{x:.1f} {TOP + LANE * lane + BAR} V{y + BAR}"/>'
