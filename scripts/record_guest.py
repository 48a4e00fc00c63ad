"""Runs in the guest of record_lsblk.py, as its first process: makes situations, reads, reports.

Needs nothing but Python, the guest's own tools and the three modules of `boards` that read disks.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

NEW = Path("/new")
# What the recorder and the tools need in every root that a state gives.
LENT = ("usr", "dev", "proc", "sys", "run", "recorder")
LINKS = ("bin", "sbin", "lib", "lib64")
PORT = Path("/dev/virtio-ports/out")


def shell(text: str, names: dict[str, str]) -> None:
    """Run steps; the first that fails ends the recording."""
    env = {**os.environ, **names, "LVM_SUPPRESS_FD_WARNINGS": "1"}
    subprocess.run(["sh", "-euxc", text], stdin=subprocess.DEVNULL, env=env, check=True)
    subprocess.run(["udevadm", "settle", "--timeout=60"], check=True)


def named(disks: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Find each disk's device by its size, which no other has."""
    sizes: dict[int, list[str]] = {}
    for block in Path("/sys/block").iterdir():
        if block.name.startswith(("loop", "ram", "dm-", "md", "zram")):
            continue
        sizes.setdefault(int((block / "size").read_text()) // 2048, []).append(block.name)
    found = {}
    for name, disk in disks.items():
        fixed = disk.get("device")
        if fixed == "EMPTY":
            (fixed,) = (n for n in sizes[0] if n.startswith("sd"))
        wanted = [fixed] if fixed else sorted(sizes.get(disk["mib"], []))
        if len(wanted) != disk.get("paths", 1):
            raise RuntimeError(f"{name}: found {wanted} among {sizes}")
        found |= {name: f"/dev/{wanted[0]}"} | {f"{name}_{i}": f"/dev/{w}"
                                               for i, w in enumerate(wanted) if i}  # fmt: skip
    return found


def inside(state: dict[str, Any], version: str, names: dict[str, str]) -> None:
    """In a mount namespace of our own: take the state's root, and read."""
    root = state["root"]
    NEW.mkdir(exist_ok=True)
    shell("mount --make-rprivate / ; " + root, names)
    for name in LENT:
        (NEW / name).mkdir(exist_ok=True)
        subprocess.run(["mount", "--rbind", f"/{name}", NEW / name], check=True)
    for name in LINKS:
        if not (NEW / name).is_symlink():
            (NEW / name).symlink_to(f"usr/{name}")
    shell(state.get("mounts", ""), names)
    os.chdir(NEW)
    subprocess.run(["mount", "--move", ".", "/"], check=True)
    os.chroot(".")
    os.environ["PATH"] = f"/recorder/{version}:{os.environ['PATH']}"
    from boards.flash.reading import LSBLK, take_reading  # lies in the guest only

    said = subprocess.run([LSBLK[0], "--version"], capture_output=True, text=True, check=True)
    reading = take_reading().encode()
    # Not what the recorder lends.
    reading["mountinfo"] = [m for m in reading["mountinfo"]
                            if m.split()[2][:2] != "0:" or " - btrfs " in m]  # fmt: skip
    swaps = Path("/proc/swaps").read_text().splitlines()[1:]
    row = {"util_linux": said.stdout.split()[-1], "swaps": swaps, "reading": reading}
    Path("/run/row.json").write_text(json.dumps(row))


def say(row: dict[str, Any]) -> None:
    """Report to the host."""
    with PORT.open("a") as out:
        out.write(json.dumps(row) + "\n")


def run(machine: dict[str, Any]) -> None:
    """Make each state in turn, and read it in every version wanted."""
    subprocess.run(["sh", "-eux", "/recorder/boot.sh"], check=True)
    disks = machine["disks"]
    names = named(disks)
    say({"kernel": platform.release(), "names": names})
    shell(machine.get("make", ""), names)
    for state in machine["states"]:
        print(f"=== {state['name']}", flush=True)
        state = {"root": machine.get("root"), "mounts": machine.get("mounts", "")} | state
        shell(state.get("do", ""), names)
        for version in state.get("versions", ["own"]):
            # Nothing old may pass for an answer.
            Path("/run/row.json").unlink(missing_ok=True)
            request = json.dumps([state, version, names])
            subprocess.run(
                ["unshare", "--mount", sys.executable, __file__, "inside"],
                input=request, text=True, check=True,
            )  # fmt: skip
            row = json.loads(Path("/run/row.json").read_text())
            paths = [d for v in row["reading"]["lsblk"]["blockdevices"] for d in paths_of(v)]
            links = {str(p): os.path.realpath(p)
                     for d in ("mapper", "md") for p in Path("/dev").glob(f"{d}/*")
                     if p.is_symlink()}  # fmt: skip
            say({"state": state["name"], "version": version, "links": links,
                 "devices": len(paths)} | row)  # fmt: skip
        shell(state.get("undo", ""), names)
    say({"done": True})


def paths_of(row: dict[str, Any]) -> list[str]:
    """Return the names of a device and of all that stands on it."""
    return [row["name"], *(n for c in row.get("children", ()) for n in paths_of(c))]


if __name__ == "__main__":
    sys.path.insert(0, "/recorder")
    if sys.argv[1:] == ["inside"]:
        inside(*json.load(sys.stdin))
        sys.exit()
    try:
        run(json.loads(Path("/recorder/machine.json").read_text()))
    except BaseException:  # the first process must not end, or the kernel panics
        traceback.print_exc()
    # At once, without asking the arrays; QEMU ends instead of starting again.
    Path("/proc/sysrq-trigger").write_text("b")
