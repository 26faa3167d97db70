"""`manage.py harness install|check|list`: get agent programs from their registries, and see that they work here.

Exit status: 0 where every named harness did what it should, 1 otherwise.
"""

import json
import shutil
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.test.utils import override_settings

from environments.harnesses import HARNESSES, HarnessMissing
from environments.harnesses.bundles import require
from environments.models import Sandbox
from environments.sandboxes import get_sandboxes

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "pi": {f"pi/{dialect}": {"dialect": dialect} for dialect in ("chat", "responses", "messages")},
    "claude-code": {"claude-code": {}, "claude-code/bare": {"bare": True}},
    "mini-swe-agent": {"mini-swe-agent": {}, "mini-swe-agent/litellm": {"model_class": "litellm", "entry": "cli"}},
}
"""Settings beside the default that are checked too."""
NOT_A_PROGRAM = "command"
COLUMNS = ("harness", "well", "outcome", "reward", "dialect", "calls", "roots", "branches", "roles", "differences", "s")


class Command(BaseCommand):
    help = "Install agent programs from their registries, or run one through a small task against the scripted engine."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        for name, text in (
            ("install", "Fetch programs into this installation's bundles."),
            ("check", "Run programs through a small task, in a sandbox, and print what was seen."),
        ):
            action = actions.add_parser(name, help=text)
            action.add_argument("names", nargs="*", metavar="NAME")
            action.add_argument("--all", action="store_true")
        action.add_argument("--json", action="store_true")
        actions.add_parser("list", help="The programs that this version knows.")

    def handle(self, **options: Any) -> None:
        if options["action"] == "list":
            self.list_programs()
            return
        names = chosen(options["names"], everything=options["all"])
        if options["action"] == "install":
            self.install(names)
        else:
            self.check_harnesses(names, as_json=options["json"])

    def list_programs(self) -> None:
        for program in HARNESSES.values():
            facts = (program.name, program.version() or "-", "/".join(program.habits.dialects), program.licence or "-")
            self.stdout.write("  ".join(facts))

    def install(self, names: Sequence[str]) -> None:
        failed = [name for name in names if not self.install_one(name)]
        if failed:
            raise CommandError(f"Not installed: {', '.join(failed)}.")

    def install_one(self, name: str) -> bool:
        recipe = HARNESSES[name].recipe
        if recipe is None:
            return True
        try:
            require(recipe, self.stderr.write)
        except HarnessMissing as error:
            self.stderr.write(str(error))
            return False
        return True

    def check_harnesses(self, names: Sequence[str], *, as_json: bool) -> None:
        reason = get_sandboxes(Sandbox.Kind.PROCESS).check()
        if reason:
            raise CommandError(reason)
        missing = [name for name in names if not self.install_one(name)]
        reports = try_all([name for name in names if name not in missing])
        if as_json:
            self.stdout.write(json.dumps({"missing": missing, "reports": reports}, indent=1))
        else:
            self.stdout.write(table([row(report) for report in reports]))
        bad = [report["harness"] for report in reports if not report["is_well"]] + missing
        if bad:
            raise CommandError(f"Not well: {', '.join(bad)}.")


def chosen(names: Sequence[str], *, everything: bool) -> list[str]:
    known = [name for name in HARNESSES if name != NOT_A_PROGRAM]
    if everything:
        return known
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise CommandError(f"Name one of {', '.join(known)}, or --all" + (f"; not {unknown[0]}." if unknown else "."))
    return list(dict.fromkeys(names))


def try_all(names: Sequence[str]) -> list[dict[str, Any]]:
    """On services of its own; the bundles of this installation are used."""
    from environments.harnesses.trial import trial_harness, try_harness
    from environments.scripted.stage import open_stage
    from gyre_web.bench._stage import stage as services

    bundles = Path(settings.DATA_DIR) / "bundles"
    bundles.mkdir(parents=True, exist_ok=True)
    with services(durable=False) as made:
        data, sockets = made.directory / "data", made.directory / "rt" / "gateway"
        data.mkdir(parents=True)
        (data / "bundles").symlink_to(bundles.resolve())
        reports = []
        with override_settings(DATA_DIR=data, GATEWAY_SOCKET_DIR=sockets), open_stage() as scene:
            for name in names:
                for label, given in VARIANTS.get(name, {name: {}}).items():
                    harness = trial_harness(name, name=label.replace("/", "-"), **given)
                    reports.append({**try_harness(scene, harness).to_json(), "harness": label})
        shutil.rmtree(data / "sandboxes", ignore_errors=True)
        return reports


def row(report: dict[str, Any]) -> list[str]:
    def counts(values: dict[str, int]) -> str:
        return " ".join(f"{name} {number}" for name, number in sorted(values.items())) or "-"

    dialects = ", ".join(dict.fromkeys(call["dialect"] for call in report["calls"])) or "-"
    error = f" ({report['error'][:120]})" if report["error"] else ""
    return [
        report["harness"], "yes" if report["is_well"] else "NO", f"{report['outcome']}{error}",
        "-" if report["reward"] is None else f"{report['reward']:g}", dialects, str(len(report["calls"])),
        str(report["num_roots"]), str(report["num_branches"]), counts(report["roles"]),
        counts(report["differences"]), f"{report['wall_s']:.1f}",
    ]  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    lines = [COLUMNS, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
