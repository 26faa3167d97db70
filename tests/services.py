"""Real Postgres and Valkey for every test, embedded, in a directory of their own, unless URLs are given.

A pytest plugin (`-p tests.services`), because it must be imported before Django reads its settings; run as
`python -m pytest`. xdist's workers inherit the URLs.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")
os.environ.setdefault("GYRE_WARM_SANDBOXES", "0")


def start_services() -> None:
    from gyre_web.up.services import EmbeddedPostgres, EmbeddedValkey

    directory = Path(tempfile.mkdtemp(prefix="gyre-test-", dir="/var/tmp"))
    directory.chmod(0o755)
    os.environ.setdefault("GYRE_DATA", str(directory / "data"))
    os.environ.setdefault("GYRE_RUNTIME", str(directory / "rt"))
    postgres = EmbeddedPostgres(directory=directory, durable=False)
    valkey = EmbeddedValkey(directory=directory, durable=False)
    postgres.start()
    valkey.start()
    os.environ["DATABASE_URL"] = postgres.url()
    os.environ["REDIS_URL"] = valkey.url()

    def stop() -> None:
        valkey.stop()
        postgres.stop()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)


if "DATABASE_URL" not in os.environ:
    start_services()
