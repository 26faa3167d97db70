"""What a program writes into its container's own layer counts against its disk limit, wherever the engine keeps it."""

from dataclasses import replace
from pathlib import Path

import pytest

from environments.sandboxes import layers
from gyre_web.bench._small_image import import_image
from tests.environments.sandboxes.conftest import LIMITS, MIB, LaunchShell
from tests.environments.sandboxes.waiting import wait_end, wait_output

FILL = "cd /srv/opentmp && for i in $(seq 60); do head -c 4M /dev/zero > f$i; sleep 0.05; done; sleep 60"


@pytest.fixture
def open_image(container_engine: str) -> str:
    """An image with a directory of its own that everybody may write to."""
    return import_image("3", {"srv/opentmp/kept": "."})


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.parametrize("way", ["walked by us", "asked of the engine"])
def test_a_full_layer_ends_the_harness(
    launch_shell: LaunchShell, open_image: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "asked of the engine":
        monkeypatch.setattr(layers, "layer_directory", lambda inspected: "")
        monkeypatch.setattr(layers, "ASKED_EVERY_S", 1.0)
    handle = launch_shell(FILL, image=open_image, limits=replace(LIMITS, disk_bytes=40 * MIB))

    status = wait_end(handle, 60)

    assert bool(handle.row.handle["layer"]) == (way == "walked by us")
    assert status.limit == "disk"


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.sandbox
def test_whoever_attaches_goes_on_measuring(launch_shell: LaunchShell, open_image: str) -> None:
    handle = launch_shell(f"echo up; sleep 1; {FILL}", image=open_image, limits=replace(LIMITS, disk_bytes=40 * MIB))
    wait_output(handle, b"up\n")
    handle.row.refresh_from_db()

    again = launch_shell.sandboxes.attach(handle.row)

    assert again is not None
    assert wait_end(again, 60).limit == "disk"


def test_a_walk_counts_each_file_and_ends_when_it_is_enough(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100_000)
    whole = layers.used_bytes(str(tmp_path), 10**9)
    assert 200_000 <= whole < 300_000
    assert 100_000 <= layers.used_bytes(str(tmp_path), 50_000) < 200_000
    assert layers.used_bytes(str(tmp_path / "missing"), 1) == 0
