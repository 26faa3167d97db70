"""Attacks from inside a sandbox, each contained and shown: what it tries, what it gets, and that its victim is unharmed.

Every attack runs against both kinds; a process sandbox also with and without control groups where a limit is attacked.
Without control groups a memory or fork bomb is seen at the supervisor's next look, a quarter of a second later: then
what holds is that it is ended, not that it never grew.
"""

import os
import socket
import stat
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings

from environments.sandboxes import Handle, cgroups
from environments.sandboxes.directory import marker_of
from environments.sandboxes.host import find_processes
from environments.verification import VerifierError, read_reward
from tests.environments.sandboxes.conftest import DOUBLINGS, LIMITS, MIB, LaunchShell
from tests.environments.sandboxes.waiting import processes_with, wait_end, wait_output

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("each_identity"), pytest.mark.slow]
PYTHON = "/gyre/venv/bin/python -I -S"


def said_by(handle: Handle, timeout_s: float = 60.0) -> list[str]:
    wait_end(handle, timeout_s)
    return handle.read_output(0).decode(errors="replace").splitlines()


# ---- other sandboxes


def test_another_sandboxs_files_cannot_be_reached_by_any_path(launch_shell: LaunchShell) -> None:
    word = uuid4().hex
    victim = launch_shell(f"echo {word} > mine; echo up; sleep 60")
    wait_output(victim, b"up")
    paths = [
        victim.work_tree / "mine",
        f"/proc/{victim.row.handle['pid']}/root/work/mine",
        f"/proc/1/root{victim.work_tree}/mine",
    ]
    script = "; ".join(f'cat "{path}" 2>&1' for path in paths)
    attacker = launch_shell(f"{script}; echo {word} > /work/mine; echo end")
    lines = said_by(attacker)
    assert lines[-1] == "end"
    assert word not in "".join(lines)
    assert (victim.work_tree / "mine").read_text() == f"{word}\n"


def test_other_sandboxes_processes_are_neither_seen_nor_reached(launch_shell: LaunchShell) -> None:
    word = f"victim-{uuid4().hex}"
    victim = launch_shell(f"echo up; while :; do sleep 0.05; : {word}; done")
    wait_output(victim, b"up")
    pids = [victim.row.handle["pid"], *processes_with(word)]
    kills = "; ".join(f"kill -9 {pid} 2>/dev/null && echo reached" for pid in pids if pid > 1000)
    attacker = launch_shell(f"cat /proc/[0-9]*/cmdline | tr '\\0' ' '; {kills}; kill -9 -1; echo end")
    said = "".join(said_by(attacker))
    assert word not in said
    assert said.count("reached") == said.count("&& echo reached")  # its own command line says so, nothing else does
    assert victim.status().running


def test_abstract_sockets_are_a_sandboxs_own(launch_shell: LaunchShell) -> None:
    """They have no file; only the network namespace keeps them apart."""
    name = f"gyre-{uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        code = f"import socket; s = socket.socket(socket.AF_UNIX); print(s.connect_ex('\\\\0{name}'))"
        [answer] = said_by(launch_shell(f'{PYTHON} -c "{code}"'))
    assert answer != "0"


# ---- the host and its services


def test_the_hosts_files_services_and_engine_are_not_reachable(launch_shell: LaunchShell) -> None:
    hosts = [settings.DATABASES["default"]["HOST"], settings.REDIS_URL.removeprefix("unix://").partition("?")[0]]
    hosts += ["/var/run/docker.sock", os.environ.get("DOCKER_HOST", "").removeprefix("unix://"), "/run/containerd"]
    hosts += [str(settings.BASE_DIR), "/etc/shadow", "/root/.ssh", str(settings.DATA_DIR)]
    there = [path for path in hosts if path]
    assert sum(os.path.exists(path) for path in there) >= 5
    tests = "; ".join(
        f'cat "{path}" >/dev/null 2>&1 && echo "read {path}"; ls "{path}/"* >/dev/null 2>&1 && echo "listed {path}"'
        for path in there
    )
    lines = said_by(launch_shell(f"{tests}; find / -type b -o -type s 2>/dev/null | grep -v ^/proc; echo end"))
    assert lines == ["end"]


def test_a_listening_port_of_the_host_is_not_there(launch_shell: LaunchShell) -> None:
    """As web, Postgres or Valkey would listen."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        addresses = ["127.0.0.1", socket.gethostbyname(socket.gethostname()), "172.17.0.1", "169.254.169.254"]
        tries = "; ".join(
            f"(exec 3<>/dev/tcp/{address}/{port}) 2>/dev/null && echo reached {address}" for address in addresses
        )
        lines = said_by(launch_shell(f"{tries}; echo end"))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert lines == ["end"]


def test_the_gateways_directory_shows_only_its_socket_and_cannot_be_changed(
    launch_shell: LaunchShell, directories: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directories / "gateway" / "gateway.sock"))
        attack = "ls -A /gyre/gateway; rm -f /gyre/gateway/gateway.sock; mv /gyre/gateway/gateway.sock /tmp/; "
        attack += "ln -s /tmp/mine /gyre/gateway/other; touch /gyre/gateway/new; ls -A /gyre/gateway; echo end"
        lines = said_by(launch_shell(f"({attack}) 2>/dev/null", gateway=True))
    assert lines == ["gateway.sock", "gateway.sock", "end"]


def test_kernel_interfaces_that_lead_out_are_closed(launch_shell: LaunchShell) -> None:
    writes = [
        "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory",
        "/sys/fs/cgroup/release_agent", "/sys/kernel/uevent_helper", "/proc/sys/kernel/hostname",
    ]  # fmt: skip
    # opened, never written: a hole must not harm the machine that finds it
    tries = "; ".join(f"(: >> {path}) 2>/dev/null && echo can write {path}" for path in writes)
    reads = "; ".join(
        f"head -c 1 {path} >/dev/null 2>&1 && echo read {path}" for path in ("/proc/kcore", "/dev/mem", "/dev/kmsg")
    )
    more = (
        "mknod /tmp/disk b 8 0 2>/dev/null && echo made a device; mount -t proc proc /tmp 2>/dev/null && echo mounted; "
    )
    more += "unshare -Urm true 2>/dev/null && echo unshared; chroot / true 2>/dev/null && echo chrooted"
    assert said_by(launch_shell(f"{tries}; {reads}; {more}; echo end")) == ["end"]


def test_the_clock_cannot_be_set(launch_shell: LaunchShell) -> None:
    code = "import time\ntry:\n  time.clock_settime(time.CLOCK_REALTIME, 1.0)\n  print('set')\nexcept OSError as e:\n  print('refused', e.errno)\n"
    before = time.time()
    assert said_by(launch_shell(f'{PYTHON} -c "{code}"')) == ["refused 1"]
    assert time.time() >= before


def test_the_supervisor_cannot_be_looked_into_or_written_over(launch_shell: LaunchShell) -> None:
    """Its output and state decide what the host believes."""
    attack = "cat /proc/1/environ /proc/1/mem /proc/1/maps >/dev/null 2>&1 && echo read; ls /proc/1/fd >/dev/null 2>&1 && echo listed; "
    attack += "for n in 0 1 2 3 4 5 6 7 8 9; do (echo forged > /proc/1/fd/$n) 2>/dev/null && echo wrote; done; ls -A /gyre/run; exit 3"
    handle = launch_shell(attack)
    status = wait_end(handle)
    said = handle.read_output(0).split()
    if launch_shell.is_namespace:  # there it is the same user, and bubblewrap leaves it open: types are checked instead
        pytest.skip("in a user namespace the supervisor shares its user with the harness; see test_life, forged states")
    assert said == []
    assert (status.exit_code, status.limit) == (3, "")


# ---- taking too much


@pytest.mark.usefixtures("each_enforcement")
def test_a_fork_bomb_harms_no_neighbour(launch_shell: LaunchShell) -> None:
    if launch_shell.is_namespace and not cgroups.parents() and os.geteuid() == 0:
        pytest.skip("the kernel does not count root's processes per user; see docs/explanation/isolation.md")
    word = f"bomb-{uuid4().hex}"
    neighbour = launch_shell("echo up; while :; do sleep 0.05; done")
    wait_output(neighbour, b"up")
    code = f"import os, time\n# {word}\nprint('lit', flush=True)\n{DOUBLINGS}"
    bomb = launch_shell(f'{PYTHON} -c "{code}"', limits=replace(LIMITS, num_processes=30))
    wait_output(bomb, b"lit")
    time.sleep(0.5)
    bomb.stop(grace_s=0.1)
    assert processes_with(word) == []
    assert neighbour.status().running
    assert said_by(launch_shell("echo fresh")) == ["fresh"]


@pytest.mark.usefixtures("each_enforcement")
def test_a_memory_bomb_is_ended_and_its_neighbour_is_not(launch_shell: LaunchShell) -> None:
    neighbour = launch_shell("echo up; while :; do sleep 0.05; done")
    wait_output(neighbour, b"up")
    code = (
        "import os\nfor _ in range(6):\n  if not os.fork():\n    held = []\n    while True:\n      held.append(b'x' * (4 << 20))\n"
        "codes = [os.wait()[1] for _ in range(6)]\nos._exit(1)\n"
    )
    bomb = launch_shell(f'{PYTHON} -c "{code}"', limits=replace(LIMITS, memory_bytes=150 * MIB))
    status = wait_end(bomb, 90)
    assert status.limit == "memory" or status.exit_code not in (0, None)
    assert neighbour.status().running


def test_a_full_disk_is_the_sandboxs_own(launch_shell: LaunchShell) -> None:
    places = "/work /tmp /home/agent /logs /gyre/run"
    fill = f"i=0; while :; do for d in {places}; do head -c 4M /dev/zero > $d/f$i 2>/dev/null; done; i=$((i+1)); sleep 0.02; done"
    handle = launch_shell(fill, limits=replace(LIMITS, disk_bytes=48 * MIB))
    assert wait_end(handle, 90).limit == "disk"


def test_shared_memory_is_bounded(launch_shell: LaunchShell) -> None:
    handle = launch_shell(
        "head -c 2G /dev/zero > /dev/shm/f; stat -c %s /dev/shm/f", limits=replace(LIMITS, file_bytes=4096 * MIB)
    )
    status = wait_end(handle, 60)
    sizes = [int(word) for word in handle.read_output(0).split() if word.isdigit()]
    assert status.limit == "memory" or sizes[-1] <= 256 * MIB


def test_a_disk_watcher_that_is_killed_or_stopped_is_no_way_to_fill_the_disk(launch_shell: LaunchShell) -> None:
    """Only where it is the harness's user can it be reached; what it is then replaced by measures as before."""
    kill = "for p in /proc/[0-9]*; do n=${p#/proc/}; [ $n != $$ ] && [ $n != 1 ] && kill -9 $n 2>/dev/null; done"
    fill = f"({kill}); for i in $(seq 200); do head -c 4M /dev/zero > f$i; sleep 0.02; done; sleep 60"
    handle = launch_shell(fill, limits=replace(LIMITS, disk_bytes=48 * MIB))
    assert wait_end(handle, 90).limit == "disk"


# ---- what is left, and what is handed over


def test_a_tool_that_ignores_every_signal_and_its_daemon_are_gone_with_the_sandbox(launch_shell: LaunchShell) -> None:
    word = f"daemon-{uuid4().hex}"
    code = (
        f"import os, signal, time\n# {word}\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\n"
        "if os.fork():\n  os._exit(0)\nos.setsid()\nif os.fork():\n  os._exit(0)\nprint('up', flush=True)\nwhile True: time.sleep(1)\n"
    )
    handle = launch_shell(f'{PYTHON} -c "{code}"; while :; do sleep 0.1; done')
    wait_output(handle, b"up")
    handle.stop(grace_s=0.2)
    assert processes_with(word) == []
    assert find_processes(marker_of(handle.row.id)) == []


def test_links_and_special_files_in_what_is_left_lead_nowhere(launch_shell: LaunchShell, directories: Path) -> None:
    secret = directories / "secret"
    secret.write_text("do not tell")
    attack = f"""
    ln -s {secret} link; ln -s / root; ln -s /etc/shadow shadow; mkfifo pipe; ln -s ../../../../../../etc/passwd up
    ln task.txt hard; mkdir -p deep/a; ln -s ../../.. deep/a/out; chmod 4755 task.txt; echo end
    """
    handle = launch_shell(attack)
    assert said_by(handle) == ["end"]
    handle.stop()
    copy = directories / "copy"
    handle.snapshot(copy)
    kinds = {path.name: stat.S_IFMT(path.lstat().st_mode) for path in copy.rglob("*")}
    assert {"link", "root", "shadow", "pipe", "up", "out"}.isdisjoint(kinds)
    assert {"task.txt", "hard"} <= set(kinds)
    assert not (copy / "task.txt").stat().st_mode & stat.S_ISUID


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("ln -s /etc/hostname /logs/verifier/reward.txt", "link"),
        ("mkfifo /logs/verifier/reward.json", "plain file"),
        ("echo 1 > /logs/r; ln /logs/r /logs/verifier/reward.txt", "of its own"),
        ("head -c 2M /dev/zero > /logs/verifier/reward.txt", "larger"),
        ("rmdir /logs/verifier; ln -s /etc /logs/verifier", "no directory"),
    ],
)
def test_a_reward_that_is_no_plain_file_is_none(launch_shell: LaunchShell, attack: str, said: str) -> None:
    handle = launch_shell(f"mkdir -p /logs/verifier; {attack}")
    wait_end(handle)
    with pytest.raises(VerifierError, match=said):
        read_reward(handle.logs)


def test_a_work_directory_exchanged_for_a_link_does_not_lead_a_snapshot_out(
    launch_shell: LaunchShell, directories: Path
) -> None:
    handle = launch_shell("mv /work/task.txt /tmp/; rmdir /work 2>&1; ln -sfn / /work/w; echo end")
    wait_end(handle)
    handle.stop()
    handle.snapshot(directories / "copy")
    assert list((directories / "copy").iterdir()) == []
