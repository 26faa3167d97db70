"""An archive of a stranger is unpacked only if every entry is harmless; whatever it holds, nothing lands outside."""

import gzip
import io
import random
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.tasksets.archives import Bounds, InvalidArchive, check_archive, unpack_archive
from tests.environments.tasksets.archive_makers import KINDS, task_files, write_archive, write_tar, write_zip_link

SMALL = Bounds(entries=50, total_bytes=1 << 20, file_bytes=1 << 19, ratio=20, ratio_from_bytes=1 << 16)


def rules_of(path: Path, bounds: Bounds = SMALL) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArchive) as caught:
        check_archive(path, bounds)
    return [(problem.file, problem.rule) for problem in caught.value.problems]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_archive_is_unpacked_as_it_was_packed(tmp_path, kind):
    path = write_archive(tmp_path / f"set.{kind}", task_files())
    check_archive(path, SMALL)
    unpack_archive(path, tmp_path / "out", SMALL)
    found = {
        p.relative_to(tmp_path / "out").as_posix(): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()
    }
    assert found == task_files()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("../out.txt", "path-traversal"),
        ("a/../../out.txt", "path-traversal"),
        ("/etc/out.txt", "absolute-path"),
        ("C:/out.txt", "absolute-path"),
        ("a\\b", "bad-name"),
        ("a\nb", "bad-name"),
        ("x" * 256, "name-too-long"),
        ("a/" * 30 + "b", "name-too-long"),
    ],
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_wicked_name_is_refused_by_its_rule(tmp_path, kind, name, rule):
    found = rules_of(write_archive(tmp_path / f"set.{kind}", {name: b"x", "fine": b"x"}))
    assert [each for _, each in found] == [rule]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (tarfile.SYMTYPE, "link"),
        (tarfile.LNKTYPE, "link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "device"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, kind, rule):
    assert rules_of(write_tar(tmp_path / "a.tar", ("a/one", kind, "fine"))) == [("a/one", rule)]


def test_a_link_in_a_zip_is_refused(tmp_path):
    assert rules_of(write_zip_link(tmp_path / "a.zip", "a/one", "/etc/passwd")) == [("a/one", "link")]


def test_two_files_at_one_place_are_refused_also_where_only_case_or_accents_differ(tmp_path):
    regular = tarfile.REGTYPE
    names = ("a/one", "a/one", "A/two", "b/é", "b/e\u0301", "c", "c/d")
    found = rules_of(write_tar(tmp_path / "a.tar", *[(name, regular, "") for name in names]))
    assert found == [(name, "duplicate-name") for name in ("a/one", "A", "b/e\u0301", "c")]


def test_every_problem_is_told_at_once(tmp_path):
    found = rules_of(
        write_tar(tmp_path / "a.tar", ("../a", tarfile.REGTYPE, ""), ("/b", tarfile.REGTYPE, ""), ("c", b"2", "/etc"))
    )
    assert found == [("../a", "path-traversal"), ("/b", "absolute-path"), ("c", "link")]


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.zst"])
def test_a_bomb_is_refused_by_its_ratio(tmp_path, kind):
    path = write_archive(tmp_path / f"bomb.{kind}", {"zeros": b"\0" * 400_000})
    assert rules_of(path) == [("archive", "bomb")]


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_entries_and_too_many_bytes_are_refused(tmp_path, kind):
    many = write_archive(tmp_path / f"many.{kind}", {f"f{n}": b"" for n in range(60)})
    assert rules_of(many) == [("archive", "too-many-entries")]
    noise = random.Random(1).randbytes(1 << 20)
    bounds = Bounds(entries=50, total_bytes=1 << 20, file_bytes=1 << 21, ratio=10**6)
    large = write_archive(tmp_path / f"large.{kind}", {"a": noise, "b": noise})
    assert rules_of(large, bounds) == [("archive", "too-large")]
    assert rules_of(write_archive(tmp_path / f"file.{kind}", {"a": noise}), SMALL) == [("a", "too-large")]


def test_a_zip_whose_header_lies_about_sizes_is_counted_by_what_comes_out(tmp_path):
    path = write_archive(tmp_path / "lie.zip", {"zeros": b"\0" * 400_000})
    data = path.read_bytes().replace((400_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(data)
    with pytest.raises(InvalidArchive):
        check_archive(path, SMALL)


def test_a_header_that_claims_to_be_huge_is_not_read_into_memory(tmp_path):
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096)
    assert rules_of(tmp_path / "a.tar") == [("a.tar", "damaged")]


def test_what_is_no_archive_or_is_encrypted_is_said(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"hello")
    assert rules_of(tmp_path / "a.zip") == [("a.zip", "unknown-format")]
    path = write_archive(tmp_path / "b.zip", {"a": b"x"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert rules_of(path) == [("a", "encrypted")]


NAMES = st.text(alphabet="ab./\\\u00e9E e\u0301\0:", min_size=1, max_size=12)
MEMBERS = st.lists(
    st.tuples(NAMES, st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, b"3", b"6"])),
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members=MEMBERS)
def test_whatever_a_tar_holds_it_is_refused_or_lands_inside(tmp_path_factory, members):
    root = tmp_path_factory.mktemp("any")
    path = write_tar(root / "a.tar", *[(name, kind, "../x") for name, kind in members])
    _check_or_unpack_inside(path, root)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(NAMES, max_size=8))
def test_whatever_a_zip_holds_it_is_refused_or_lands_inside(tmp_path_factory, names):
    root = tmp_path_factory.mktemp("any")
    with zipfile.ZipFile(root / "a.zip", "w") as archive:
        for name in names:
            info = zipfile.ZipInfo("x")
            info.filename = name
            archive.writestr(info, b"x")
    _check_or_unpack_inside(root / "a.zip", root)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_damaged_archive_is_refused_and_never_an_unexpected_error(tmp_path_factory, data, kind):
    root = tmp_path_factory.mktemp("damaged")
    path = write_archive(root / f"a.{kind}", task_files())
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(bytes(content[:cut]))
    _check_or_unpack_inside(path, root)


def test_random_bytes_behind_a_gzip_header_are_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(io.BytesIO(b"not a tar" * 200).getvalue()))
    assert rules_of(path) == [("a.tar.gz", "damaged")]


def _check_or_unpack_inside(path: Path, root: Path) -> None:
    before = sorted(root.rglob("*"))
    out = root / "out"
    try:
        check_archive(path, SMALL)
    except InvalidArchive:
        assert sorted(root.rglob("*")) == before
        return
    unpack_archive(path, out, SMALL)
    outside = [found for found in root.rglob("*") if not found.is_relative_to(out) and found not in before]
    assert outside == []
    assert not any(found.is_symlink() for found in out.rglob("*"))
