"""Which numbers the run page charts, by the keys of training.metrics.DEFINITIONS, which also says what they mean."""

from dataclasses import dataclass, replace

from training.metrics import define

REWARD = "reward_mean"
SOLVED = "solved_fraction"
NO_SIGNAL = "no_signal_fraction"
STALENESS = "staleness_max"


@dataclass(frozen=True, kw_only=True)
class Series:
    key: str
    name: str
    band: bool = False
    """Drawn thin: an extreme, or a second opinion, beside the main line."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """kind: of the Metric rows. divide_by: to show bytes as GB."""

    id: str
    title: str
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = False
    kind: str = "policy"
    divide_by: float = 1.0

    @property
    def meaning(self) -> str:
        """Of every series, as DEFINITIONS says it."""
        if len(self.series) == 1:
            return define(self.series[0].key).meaning
        return " ".join(f"{series.name.capitalize()}: {define(series.key).meaning}" for series in self.series)

    @property
    def keys(self) -> str:
        return " · ".join(series.key for series in self.series)


def charts_of(kind: str) -> tuple[Chart, ...]:
    """What a run of this kind charts."""
    match kind:
        case "supervised":
            return (LOSS, *OFFLINE)
        case "preference":
            return (PAIR_LOSS, PAIRS, GAINS, *(replace(chart, kind="preference") for chart in OFFLINE))
        case "evaluation":
            return ()
        case _:
            return CHARTS


LOSS = Chart(id="loss", title="Loss", series=(Series(key="loss", name="loss"),), unit="nat", kind="supervised")
PAIR_LOSS = replace(LOSS, kind="preference", unit="")
PAIRS = Chart(
    id="pairs",
    title="Pairs right",
    series=(Series(key="pair_accuracy", name="share"),),
    unit="share",
    kind="preference",
)
GAINS = Chart(
    id="gains",
    title="Gain over the reference",
    series=(Series(key="chosen_gain", name="chosen"), Series(key="rejected_gain", name="rejected")),
    unit="nat",
    kind="preference",
)
OFFLINE: tuple[Chart, ...] = (
    Chart(
        id="entropy", title="Entropy", series=(Series(key="entropy", name="entropy"),), unit="nat", kind="supervised"
    ),
    Chart(id="gradient", title="Gradient norm", series=(Series(key="grad_norm", name="norm"),), kind="supervised"),
    Chart(id="rate", title="Learning rate", series=(Series(key="learning_rate", name="rate"),), kind="supervised"),
    Chart(
        id="speed",
        title="Training speed",
        series=(Series(key="train_tokens_per_s", name="tokens/s"),),
        unit="tokens/s",
        kind="supervised",
    ),
    Chart(
        id="memory",
        title="Trainer memory",
        series=(Series(key="peak_memory_bytes", name="peak"),),
        unit="GB",
        kind="supervised",
        divide_by=1e9,
    ),
)

CHARTS: tuple[Chart, ...] = (
    Chart(
        id="reward",
        title="Reward",
        series=(Series(key=REWARD, name="mean"), Series(key=SOLVED, name="solved", band=True)),
    ),
    Chart(
        id="heldout",
        title="Held-out success",
        series=(Series(key="heldout/rate", name="solved"),),
        unit="share",
        kind="evaluation",
    ),
    Chart(id="signal", title="Groups without signal", series=(Series(key=NO_SIGNAL, name="share"),), unit="share"),
    Chart(
        id="lengths",
        title="Lengths",
        series=(
            Series(key="length_mean", name="sampled, mean"),
            Series(key="context_max", name="longest context", band=True),
        ),
        unit="tokens",
    ),
    Chart(id="entropy", title="Entropy", series=(Series(key="entropy", name="entropy"),), unit="nat"),
    Chart(
        id="mismatch",
        title="Trainer against engine",
        series=(Series(key="mismatch_mean", name="mean"), Series(key="mismatch_max", name="largest", band=True)),
        unit="nat",
    ),
    Chart(
        id="ratio",
        title="Importance ratio",
        series=(Series(key="ratio_mean", name="mean"), Series(key="ratio_max", name="largest", band=True)),
    ),
    Chart(
        id="staleness",
        title="Staleness",
        series=(Series(key="staleness_mean", name="mean"), Series(key=STALENESS, name="largest", band=True)),
        unit="versions",
    ),
    Chart(
        id="seconds",
        title="Seconds by phase",
        series=(
            Series(key="generation_s", name="generate"),
            Series(key="train_s", name="train"),
            Series(key="publish_s", name="publish"),
            Series(key="save_s", name="save"),
            Series(key="load_s", name="read"),
        ),
        unit="s",
        stacked=True,
    ),
    Chart(id="warm", title="Warm start loss", series=(Series(key="loss", name="loss"),), kind="supervised"),
    Chart(id="gradient", title="Gradient norm", series=(Series(key="grad_norm", name="norm"),)),
    Chart(
        id="memory",
        title="Trainer memory",
        series=(Series(key="peak_memory_bytes", name="peak"),),
        unit="GB",
        divide_by=1e9,
    ),
    Chart(
        id="loss",
        title="Policy loss",
        series=(Series(key="loss", name="loss"),),
    ),
    Chart(
        id="advantage",
        title="Advantage",
        series=(Series(key="advantage_abs", name="size"), Series(key="advantage_mean", name="mean", band=True)),
    ),
    Chart(id="kl", title="KL to start", series=(Series(key="kl", name="KL"),), unit="nat"),
    Chart(
        id="clip",
        title="Clipped and masked",
        series=(Series(key="clip_fraction", name="clipped"), Series(key="masked_fraction", name="masked")),
        unit="share",
    ),
    Chart(
        id="branches",
        title="Branches",
        series=(Series(key="branches_mean", name="in a tree"), Series(key="samples_mean", name="trained")),
    ),
    Chart(
        id="delivered",
        title="Delivered to training",
        series=(Series(key="delivered_rollouts", name="rollouts"), Series(key="delivered_tokens", name="tokens")),
        unit="share",
    ),
    Chart(
        id="members",
        title="Members",
        series=(Series(key="members", name="counted"), Series(key="excluded", name="excluded")),
        unit="rollouts",
        stacked=True,
    ),
    Chart(
        id="speed",
        title="Tokens a second",
        series=(
            Series(key="generated_tokens_per_s", name="sampled"),
            Series(key="train_tokens_per_s", name="trained"),
        ),
        unit="tokens/s",
    ),
    Chart(id="rate", title="Learning rate", series=(Series(key="learning_rate", name="rate"),)),
)
