"""A copy of an agent's tree leads nobody out of it."""

import os
from pathlib import Path

import pytest

from environments.sandboxes import copy_tree, read_regular
from environments.sandboxes.trees import leaves_tree, remove_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "tree"
    (source / "in" / "deep").mkdir(parents=True)
    (source / "in" / "file").write_text("text")
    return source


def test_files_directories_times_and_inner_links_are_copied(tree: Path, tmp_path: Path) -> None:
    (tree / "in" / "up").symlink_to("../in/file")
    os.utime(tree / "in" / "file", (1000, 2000))
    (tree / "in" / "file").chmod(0o4755)

    assert copy_tree(tree, tmp_path / "copy") == []

    copy = tmp_path / "copy"
    assert (copy / "in" / "up").read_text() == "text"
    assert (copy / "in" / "file").stat().st_mtime == 2000
    assert (copy / "in" / "file").stat().st_mode & 0o7777 == 0o755
    assert (copy / "in" / "deep").is_dir()


def test_links_out_fifos_and_devices_stay_out_and_are_named(tree: Path, tmp_path: Path) -> None:
    (tree / "a-host").symlink_to("/etc/passwd")
    (tree / "in" / "b-up").symlink_to("../../secret")
    os.mkfifo(tree / "in" / "c-fifo")
    if os.geteuid() == 0:
        os.mknod(tree / "in" / "d-device", 0o020666, os.makedev(1, 3))

    left_out = copy_tree(tree, tmp_path / "copy")

    expected = ["a-host: a link out of the tree", "in/b-up: a link out of the tree", "in/c-fifo: not a plain file"]
    assert left_out[:3] == expected
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*")) == ["deep", "file", "in"]


def test_a_linked_directory_is_not_walked(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("no")
    (tree / "way").symlink_to("../outside")
    copy_tree(tree, tmp_path / "copy", keep_outer_links=True)
    assert (tmp_path / "copy" / "way").is_symlink()
    with pytest.raises(OSError):
        copy_tree(tree / "way", tmp_path / "other")


def test_holes_stay_holes(tree: Path, tmp_path: Path) -> None:
    with open(tree / "sparse", "wb") as file:
        file.seek(1 << 34)
        file.write(b"end")
    copy_tree(tree, tmp_path / "copy")
    found = (tmp_path / "copy" / "sparse").stat()
    assert found.st_size == (1 << 34) + 3
    assert found.st_blocks * 512 < 1 << 20


def test_a_tree_deeper_than_anybody_needs_ends_somewhere_and_can_be_removed(tree: Path, tmp_path: Path) -> None:
    at = os.open(tree, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    left_out = copy_tree(tree, tmp_path / "copy")
    assert [line.endswith("too deep") for line in left_out] == [True]
    remove_tree(tree)
    assert not tree.exists()


@pytest.mark.parametrize(
    ("link", "path", "leaves"),
    [
        ("/etc", ("a",), True),
        ("b", ("a",), False),
        ("..", ("a",), True),
        ("..", ("d", "a"), False),
        ("../../x", ("d", "a"), True),
        ("x/../../y", ("d", "a"), False),
        ("x/../../../y", ("d", "a"), True),
    ],
)
def test_whether_a_link_leaves(link: str, path: tuple[str, ...], leaves: bool) -> None:
    assert leaves_tree(link, path) is leaves


def test_only_a_plain_file_is_read(tree: Path) -> None:
    (tree / "link").symlink_to("in/file")
    os.mkfifo(tree / "fifo")
    assert read_regular(tree / "in" / "file", offset=1, limit=2) == b"ex"
    for name in ("link", "fifo", "in"):
        with pytest.raises(OSError):
            read_regular(tree / name)
