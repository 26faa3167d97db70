#!/usr/bin/env python
"""Entry point of every command: `python manage.py up`, `doctor`, `demo`, `bench NAME`, ..."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' progress bars; Gyre says itself how far it is
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
