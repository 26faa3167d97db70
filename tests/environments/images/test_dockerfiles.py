"""What a Dockerfile starts from, and other images put there."""

from environments.images.build import family_of, read_bases, replace_bases

STAGES = """
ARG VERSION=3.12
FROM python:${VERSION}-slim AS build
RUN true
FROM --platform=linux/amd64 debian:12
COPY --from=build /a /a
FROM build
FROM scratch
"""


def test_stages_and_scratch_are_no_bases_and_arguments_are_filled_in() -> None:
    assert read_bases(STAGES) == ["python:3.12-slim", "debian:12"]


def test_only_the_names_that_are_replaced_change() -> None:
    replaced = replace_bases(STAGES, {"python:3.12-slim": "gyre-base:x"})
    assert "FROM gyre-base:x AS build" in replaced
    assert "FROM --platform=linux/amd64 debian:12" in replaced
    assert replaced.replace("gyre-base:x", "python:${VERSION}-slim") == STAGES


def test_a_family_is_the_official_image_alone() -> None:
    assert family_of("python:3.12-slim") == family_of("docker.io/library/python") == "python"
    assert family_of("debian@sha256:00") == "debian"
    assert family_of("somebody/python:3") == family_of("alpine:3") == ""
