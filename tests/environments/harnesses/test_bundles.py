"""Agent programs as directories that run in any image: built once, published whole."""

import io
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import docker
import pytest

from environments.harnesses import bundles, runtimes
from environments.harnesses.base import HarnessMissing
from environments.harnesses.bundles import BundleError, Libc, Recipe

EMPTY_IMAGE = "gyre-test-empty:1"
PROGRAM = """import json, sys
def main():
    import hashlib, lzma, sqlite3, ssl, ctypes, pwd
    print(json.dumps([sys.executable, sys.argv[1:], [path for path in sys.path if "gyre" not in path]]))
"""


@pytest.fixture(autouse=True)
def data(settings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path / "data"
    return tmp_path / "data"


@pytest.mark.parametrize(
    "loose", [{"pip": ("thing",)}, {"pip": ("thing>=1",)}, {"npm": ("thing",)}, {"npm": ("@a/b",)}]
)
def test_a_recipe_without_exact_versions_is_refused(loose: dict) -> None:
    with pytest.raises(ValueError, match="exact versions"):
        Recipe(name="thing", version="1", **loose)


def test_everything_that_changes_a_bundle_changes_its_name() -> None:
    plain = Recipe(name="thing", version="1.0.0", npm=("@a/b@1.0.0",))
    others = [
        Recipe(name="thing", version="1.0.0", npm=("@a/b@1.0.1",)),
        Recipe(name="thing", version="1.0.0", npm=("@a/b@1.0.0",), libc=Libc.MUSL),
        Recipe(name="thing", version="1.0.0", npm=("@a/b@1.0.0",), node="20.0.0"),
    ]
    assert len({recipe.digest() for recipe in (plain, *others)}) == 4
    assert plain.digest() == Recipe(name="thing", version="1.0.0", npm=("@a/b@1.0.0",)).digest()


def test_of_many_builders_one_builds_and_all_find_it_whole(tmp_path: Path) -> None:
    built = []

    def build() -> None:
        with bundles.publishing(tmp_path / "root" / "thing") as aside:
            if aside is not None:
                built.append(aside)
                (aside / "half").write_text("")
                time.sleep(0.05)
                assert not (tmp_path / "root" / "thing").exists()
                (aside / "whole").write_text("")
        assert (tmp_path / "root" / "thing" / "whole").exists()

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(built) == 1


def test_what_fails_leaves_nothing_and_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".thing-abc"
    leftover.mkdir()

    def fail() -> None:
        with bundles.publishing(tmp_path / "thing"):
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert not leftover.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == [".thing.lock"]


def test_an_installer_that_fails_is_quoted_and_nothing_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "build_python", lambda say: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BundleError, match=r"harness thing: pip failed.*gyre-no-such-thing"):
        bundles.build(Recipe(name="thing", version="1", pip=("gyre-no-such-thing==1",)))
    assert bundles.find(Recipe(name="thing", version="1", pip=("gyre-no-such-thing==1",))) is None


def test_without_npm_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes.shutil, "which", lambda name: None)
    with pytest.raises(HarnessMissing, match="npm is not installed"):
        bundles.build(Recipe(name="thing", version="1", npm=("thing@1.0.0",)))


@pytest.mark.docker
@pytest.mark.slow
def test_a_program_runs_in_an_image_that_holds_nothing_at_all(
    container_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    bundle = bundles.require(Recipe(name="gyre-probe", version="1.0", pip=("gyre-probe==1.0",)))
    api = docker.APIClient(base_url=container_engine, version="auto")
    api.import_image_from_data(empty_archive(), repository=EMPTY_IMAGE.split(":")[0], tag="1")
    binds = [f"{mount.source}:{mount.target}:ro" for mount in bundle.mounts]
    container = api.create_container(
        EMPTY_IMAGE,
        ["/gyre/bundle/bin/gyre-probe", "word"],
        network_disabled=True,
        host_config=api.create_host_config(binds=binds, network_mode="none"),
    )
    try:
        api.start(container)
        code = api.wait(container)["StatusCode"]
        said = api.logs(container).decode()
    finally:
        api.remove_container(container, force=True)
        api.remove_image(EMPTY_IMAGE, force=True)
    assert code == 0, said
    assert said.strip() == '["/gyre/python/bin/python3", ["word"], []]'


def write_wheel(directory: Path) -> None:
    directory.mkdir()
    info = "gyre_probe-1.0.dist-info"
    files = {
        "gyre_probe.py": PROGRAM,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: gyre-probe\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ngyre-probe = gyre_probe:main\n",
    }
    with zipfile.ZipFile(directory / "gyre_probe-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))


def empty_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("gyre")
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    return buffer.getvalue()
