"""`manage.py images prune` on a machine without a container engine: bundles of agent programs that nobody wants."""

import json
import os
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import timezone

from environments.harnesses import runtimes
from environments.images.pruning import find_stale, mounted_bundles
from environments.sandboxes import Launch, Limits, Mount, get_sandboxes

pytestmark = [pytest.mark.slow, pytest.mark.sandbox, pytest.mark.django_db]

MONTH = timedelta(days=30)
MIB = 1 << 20


def test_a_bundle_goes_when_nobody_wanted_it_and_no_sandbox_has_it_mounted(
    settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    settings.DATA_DIR = tmp_path / "data"
    for path in (tmp_path, *list(tmp_path.parents)[:2]):
        path.chmod(0o755)
    (tmp_path / "data").mkdir()
    old = (timezone.now() - timedelta(days=40)).timestamp()
    for name in ("mounted-1", "unused-1", "wanted-1"):
        path = runtimes.root_directory() / name
        path.mkdir(parents=True)
        (path / "program").write_text("x" * 100_000)
        os.utime(path, (old, old))
    runtimes.stamp(runtimes.root_directory() / "wanted-1")
    handle = get_sandboxes("process").launch(launch_with(runtimes.root_directory() / "mounted-1"))
    try:
        assert mounted_bundles() == {"mounted-1"}
        out, said = StringIO(), StringIO()
        call_command("images", "prune", "--yes", "--json", stdout=out)
        call_command("images", "prune", stdout=StringIO(), stderr=said)
    finally:
        handle.remove()

    assert "Only bundles were looked at. sandbox: no container engine answers" in said.getvalue()
    done = json.loads(out.getvalue())
    assert [(row["kind"], row["name"], row["removed"]) for row in done["stale"]] == [("bundle", "unused-1", True)]
    assert done["removed_bytes"] >= 100_000
    assert sorted(path.name for path in runtimes.root_directory().iterdir()) == ["mounted-1", "wanted-1"]
    assert [stale.name for stale in find_stale(MONTH)] == ["mounted-1"]


def launch_with(bundle: Path) -> Launch:
    return Launch(
        rollout_id=None,
        session_id=None,
        purpose="agent",
        command=["sleep", "60"],
        environment={},
        work_tree=None,
        read_only=[Mount(source=bundle, target="/gyre/bundle")],
        gateway=False,
        timeout_s=60.0,
        limits=Limits(cpu_s=None, memory_bytes=256 * MIB, num_processes=16, file_bytes=16 * MIB, disk_bytes=16 * MIB),
    )
