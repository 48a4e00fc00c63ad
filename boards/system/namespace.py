"""Run a step as root of a user namespace, with mounts and processes that vanish with it.

Inside, files can belong to every user of the image, `chroot` and `mount` work, and arm64 programs
run under qemu-user through a binfmt_misc of the namespace's own (Linux 6.7 and later). Outside
nothing changes, whatever interrupts the step: mounts and children die with the namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from boards.system.tool import call, need
from edge_kit.errors import ImageError

__all__ = ["emulate_arm64", "run_as_root"]

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_IDS = 65536
_HINT = (
    "run as root, or let this user make namespaces: sysctl kernel.unprivileged_userns_clone=1, "
    "and 65536 ids of the user in /etc/subuid and /etc/subgid"
)

_BINFMT = Path("/proc/sys/fs/binfmt_misc")
# Magic and mask of 64-bit little-endian ELF executables for AArch64 (machine 0xb7): elf(5). The
# flags ask the kernel to open the interpreter now (F), to keep argv[0] (P) and to take the
# program's credentials (O, C).
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_NATIVE = ("aarch64", "arm64")


def run_as_root(command: Sequence[str]) -> int:
    """Run a command as root of new user, mount and process namespaces; return its exit status.

    Raises:
        ImageError: This user may not make them; the message says what would let them.
    """
    wrapped = [need("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    asks, asked = os.pipe()
    answer, answers = os.pipe()
    child = os.fork()
    if child == 0:
        _become_root([*wrapped, *command], asked, answer)
    os.close(asked)
    os.close(answer)
    try:
        if os.read(asks, 1) != b"u":
            os.waitpid(child, 0)
            raise ImageError("this user may not make a user namespace", _HINT)
        try:
            _map_ids(child)
        except (OSError, ImageError) as error:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise ImageError(f"users cannot be mapped into a namespace: {error}", _HINT) from None
        os.write(answers, b"m")
        return _wait(child)
    finally:
        os.close(asks)
        os.close(answers)


def _wait(child: int) -> int:
    """Wait for the child; an interruption ends it first, and with it all that it started."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        # `unshare` is deaf to gentler signals, and its end kills all that is inside.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def _become_root(command: Sequence[str], asked: int, answer: int) -> None:
    """Turn this forked child into the command; never returns."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER):
            os._exit(125)
        os.write(asked, b"u")
        if os.read(answer, 1) != b"m":
            os._exit(125)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # Last, since a change of user undoes it: who kills the build must not leave this running.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execv(command[0], list(command))
    finally:
        os._exit(125)


def _map_ids(pid: int) -> None:
    if os.geteuid() == 0:
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(f"0 0 {_IDS}\n", encoding="ascii")
        return
    for tool, file, own in (
        ("newuidmap", "/etc/subuid", os.geteuid()),
        ("newgidmap", "/etc/subgid", os.getegid()),
    ):
        first = _first_sub_id(Path(file))
        call([tool, str(pid), "0", str(own), "1", "1", str(first), str(_IDS - 1)])


def _first_sub_id(file: Path) -> int:
    import pwd

    name = pwd.getpwuid(os.geteuid()).pw_name
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in (name, str(os.geteuid())) and int(count or 0) >= _IDS - 1:
            return int(first)
    raise ImageError(f"{file} gives {name} no {_IDS} ids")


def emulate_arm64() -> None:
    """Let this namespace run arm64 programs; nothing to do on an arm64 machine.

    Raises:
        ImageError: The kernel is too old for a binfmt_misc of a namespace's own, and the
            machine's does not know arm64 either.
    """
    if os.uname().machine in _NATIVE:
        return
    emulator = need("qemu-aarch64-static")
    try:
        call(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT])
    except ImageError:
        if _known_already():
            return
        raise ImageError(
            "this kernel has no binfmt_misc for namespaces (Linux 6.7 and later do)",
            "as root: mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && "
            "update-binfmts --enable qemu-aarch64",
        ) from None
    if not _known_already():
        line = f":edge-kit-aarch64:M::{_MAGIC}:{_MASK}:{emulator}:POCF"
        (_BINFMT / "register").write_text(line, encoding="ascii")


def _known_already() -> bool:
    return any("aarch64" in f.name for f in _BINFMT.glob("*"))
