"""The installer finds torch's CPU build where pip's own indexes lack it, from an index that GYRE_TORCH_INDEX names."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "requirements" / "install.py"


def load_installer():
    spec = importlib.util.spec_from_file_location("gyre_install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_index(directory: Path) -> str:
    """A package index in a directory, with an empty wheel of torch 2.13.0+cpu. Returns its address."""
    project = directory / "simple" / "torch"
    project.mkdir(parents=True)
    name = "torch-2.13.0+cpu-py3-none-any.whl"
    with zipfile.ZipFile(project / name, "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        info = "torch-2.13.0+cpu.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    (project / "index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>')
    return (directory / "simple").as_uri()


@pytest.fixture
def bare_pip(monkeypatch, tmp_path):
    """pip configured with one empty index and nothing else."""
    (tmp_path / "empty" / "simple").mkdir(parents=True)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty" / "simple").as_uri())
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.mark.slow
@pytest.mark.usefixtures("bare_pip")
def test_torch_comes_from_the_named_index_where_pips_own_lack_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("GYRE_TORCH_INDEX", write_index(tmp_path / "cpu"))
    python = load_installer().make_venv(tmp_path / "venv")
    load_installer().install_torch(python)
    shown = subprocess.run([python, "-m", "pip", "show", "torch"], capture_output=True, text=True, check=True).stdout
    assert "Version: 2.13.0+cpu" in shown
    assert "adding PyTorch's own CPU index" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("bare_pip")
def test_a_torch_that_cannot_be_had_is_one_sentence_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("GYRE_TORCH_INDEX", (tmp_path / "empty" / "simple").as_uri())
    python = load_installer().make_venv(tmp_path / "venv")
    with pytest.raises(SystemExit, match="set GYRE_TORCH_INDEX"):
        load_installer().install_torch(python)


def test_a_second_call_with_the_same_requirements_does_nothing(tmp_path, monkeypatch):
    installer = load_installer()
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / ".gyre-stamp").write_text(installer.stamp_of(installer.requirement_files("cpu", dev=True)))
    monkeypatch.setattr(installer, "install_system", lambda dev: None)
    for arguments in (["--dev"], []):
        monkeypatch.setattr(sys, "argv", ["install.py", "--engine", "cpu", "--venv", str(venv), *arguments])
        installer.main()
    assert [path.name for path in venv.iterdir()] == [".gyre-stamp"]
