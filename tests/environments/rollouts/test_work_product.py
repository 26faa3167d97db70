"""What an agent left is shown as a diff and searched for signs of cheating."""

from environments.work_product import MAX_DIFF_CHARS, build_diff, find_flags


def test_changed_new_and_deleted_files_are_in_the_diff(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    (before / "a.txt").write_text("one\ntwo\n")
    (after / "a.txt").write_text("one\n2\n")
    (before / "gone.txt").write_text("x\n")
    (after / "new.txt").write_text("y")
    diff = build_diff(before, after)
    assert "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in diff
    assert "--- a/gone.txt\n+++ /dev/null\n" in diff
    assert "+++ b/new.txt\n@@ -0,0 +1 @@\n+y\n\\ No newline at end of file\n" in diff


def test_binary_files_are_only_named_and_links_are_not_followed(tmp_path):
    (tmp_path / "image").write_bytes(b"\x00\x01")
    (tmp_path / "link").symlink_to("/etc/passwd")
    diff = build_diff(None, tmp_path)
    assert "Binary or large file image differs" in diff
    assert "+link to /etc/passwd" in diff
    assert "root:" not in diff


def test_a_huge_diff_is_cut(tmp_path):
    for number in range(5):
        (tmp_path / f"f{number}").write_text("line\n" * 20_000)
    assert len(build_diff(None, tmp_path)) < MAX_DIFF_CHARS + 100


def test_an_edited_test_of_the_task_is_flagged_by_name(tmp_path):
    before, after, logs = (tmp_path / name for name in ("before", "after", "logs"))
    for root, text in ((before, "assert 1\n"), (after, "pass\n")):
        root.mkdir()
        (root / "test_it.py").write_text(text)
    logs.mkdir()
    flags = find_flags(before, after, logs, "")
    assert [(flag.kind, flag.evidence) for flag in flags] == [("tests_edited", "test_it.py")]
    assert find_flags(after, after, logs, "") == []
