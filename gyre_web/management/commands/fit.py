"""`manage.py fit --model PATH --context N`: what training and serving a model takes on each device of a cell.

From:  a person, before a run is configured.
To:    training.fit; a table, and with --json one line.
"""

import json as json_format
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Compute the memory of a model in training and serving, and say which cards hold it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--model", required=True, help="Hugging Face directory or hub name; only its config is read."
        )
        parser.add_argument("--context", type=int, required=True, help="Longest sample, in tokens.")
        parser.add_argument("--tokens", type=int, help="Tokens of a micro-batch; default: the context.")
        parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
        parser.add_argument("--lora-rank", type=int, default=0, help="0: full fine-tuning.")
        parser.add_argument("--activations", choices=("keep", "checkpoint", "offload"), default="checkpoint")
        parser.add_argument("--devices", type=int, default=1, help="Devices of a cell: FSDP2 over all of them.")
        parser.add_argument("--division", choices=("data", "context"), default="context")
        parser.add_argument("--running", type=int, default=8, help="Sequences the engine holds at full context.")
        parser.add_argument("--json", action="store_true", help="One JSON line instead of the table.")

    def handle(self, *args: Any, model: str, context: int, tokens: int | None, json: bool, **options: Any) -> None:
        from training.fit import Setup, fit_model

        if min(context, tokens or context, options["devices"]) < 1:
            raise CommandError("--context, --tokens and --devices are at least 1.")
        names = ("precision", "lora_rank", "activations", "devices", "division", "running")
        setup = Setup(context=context, tokens=tokens or context, **{name: options[name] for name in names})
        try:
            shape, found = fit_model(model, setup)
        except (OSError, ValueError) as error:
            raise CommandError(f"{model} has no readable config.json of a causal LM: {error}") from error
        report = found.report() | {"parameters": shape.parameters, "trainable": shape.trainable}
        if json:
            self.stdout.write(json_format.dumps({"model": model, "context": context, **report}))
            return
        self.stdout.write(
            f"{shape.parameters / 1e9:.3g}e9 parameters, {shape.trainable / 1e9:.3g}e9 trained. GB on one device:"
        )
        for name, value in report.items():
            if name not in ("cards", "parameters", "trainable"):
                self.stdout.write(f"  {name:15} {value / 1e9:9.2f}")
        for card, answer in report["cards"].items():
            words = [f"{name} {'fits' if fits else 'does not fit'}" for name, fits in answer.items()]
            self.stdout.write(f"  {card:15} {', '.join(words)}")
