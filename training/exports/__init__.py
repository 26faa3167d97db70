"""Recorded rollouts as files for other programs.

record.py    a rollout's branches, messages and facts, as training would select them
formats.py   one line, or one file, of each format; pure
writer.py    the background job: from an Export row to a zip
services.py  make an Export
"""
