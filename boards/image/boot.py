"""Boot an image in QEMU, on a copy that takes all writes, with the image's own command line."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from boards.image.partitions import partitions
from boards.image.tool import Report, call, need
from boards.payload.settings import FILE, Settings
from edge_kit.errors import ImageError, UsageError

__all__ = ["MACHINES", "Guest", "boot_files", "command_line", "start", "unpack_xz"]


@dataclass(frozen=True)
class Machine:
    """One of QEMU's machines.

    Attributes:
        options: Its own options; ``{disk}`` and ``{memory}`` are filled in.
        console: What the kernel calls the serial line that QEMU writes to the log.
        serials: How many serial lines come before that one.
        tree: Device tree on the boot partition; empty where QEMU brings one.
    """

    options: tuple[str, ...]
    console: str
    serials: int
    tree: str


MACHINES = {
    "virt": Machine(
        ("-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "1024",
         "-drive", "if=none,id=card,file={disk},format=qcow2,cache=unsafe",
         "-device", "virtio-blk-device,drive=card",
         "-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net",
         "-device", "virtio-rng-device"),
        "ttyAMA0", 0, "",
    ),
    "raspi3b": Machine(
        ("-M", "raspi3b", "-m", "1024",
         "-drive", "if=sd,file={disk},format=qcow2,cache=unsafe",
         "-netdev", "user,id=net", "-device", "usb-net,netdev=net"),
        "ttyS1,115200", 1, "bcm2837-rpi-3-b.dtb",
    ),
}  # fmt: skip


@dataclass
class Guest:
    """A running emulator.

    Attributes:
        process: QEMU.
        log: The file that the serial console goes to.
        settings: What the image says of its device.
    """

    process: subprocess.Popen[bytes]
    log: Path
    settings: Settings

    def console(self) -> str:
        """Return what the guest has said so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def check(self) -> None:
        """Notice a guest that will never come up.

        Raises:
            ImageError: The kernel panicked or QEMU has ended; the message holds its last words.
        """
        said = self.console()
        if "Kernel panic" in said:
            raise ImageError("the kernel panicked: " + " / ".join(said.splitlines()[-5:]))
        if self.process.poll() is not None:
            last = " / ".join(said.splitlines()[-5:])
            raise ImageError(f"QEMU ended with status {self.process.returncode}: {last}")


def command_line(text: str, console: str) -> str:
    """Return an image's kernel command line with QEMU's console instead of the board's."""
    kept = [word for word in text.split() if not word.startswith("console=")]
    return " ".join([f"console={console}", *kept])


def boot_files(image: Path, out: Path, tree: str) -> str:
    """Copy kernel, RAM disk and device tree from an image; return its kernel command line.

    Raises:
        ImageError: The image has no boot partition, or it lacks a file.
    """
    first = partitions(image)[0]
    source = f"{image}@@{first.start}"
    for name in ("vmlinuz", "initrd.img", "cmdline.txt", FILE, *([tree] if tree else [])):
        try:
            call(["mcopy", "-n", "-o", "-i", source, f"::/{name}", out / name])
        except ImageError as error:
            raise ImageError(
                f"{image} cannot be booted here: {name} is missing ({error})",
                "only images that edge-kit built have it",
            ) from None
    return (out / "cmdline.txt").read_text(encoding="ascii")


@contextmanager
def start(
    image: Path, machine: str, report: Report, *, log: Path | None = None, journal: bool = False
) -> Iterator[Guest]:
    """Boot an image; the emulator ends with the context, and the image stays as it was.

    Args:
        image: ``….img`` or ``….img.xz``.
        machine: One of `MACHINES`.
        report: Told what happens.
        log: Where the console goes; kept when given.
        journal: Let the whole journal go to the console, for finding mistakes.

    Raises:
        UsageError: There is no such machine.
        ImageError: The image cannot be read, or a tool is missing.
    """
    kind = MACHINES.get(machine)
    if kind is None:
        raise UsageError(f"there is no machine {machine!r}", f"take one of {', '.join(MACHINES)}")
    qemu = need("qemu-system-aarch64")
    with tempfile.TemporaryDirectory(prefix="edge-boot-") as name:
        work = Path(name)
        raw = image
        if image.suffix == ".xz":
            report(f"unpacking {image}")
            raw = work / "edge.img"
            unpack_xz(image, raw)
        line = command_line(boot_files(raw, work, kind.tree), kind.console)
        line += " systemd.journald.forward_to_console=1" if journal else ""
        settings = Settings.parse((work / FILE).read_text(encoding="utf-8"))
        disk = work / "card.qcow2"
        # A card is larger than the image, which the first boot has to notice; and QEMU wants cards
        # of a power of two.
        size = 1 << max(32, (raw.stat().st_size - 1).bit_length())
        backing = ["-b", str(raw.resolve()), "-F", "raw"]
        call(["qemu-img", "create", "-q", "-f", "qcow2", *backing, disk, str(size)])
        log = log or work / "console.log"
        command = [qemu, *(word.format(disk=disk) for word in kind.options)]
        command += ["-kernel", str(work / "vmlinuz"), "-initrd", str(work / "initrd.img")]
        command += ["-append", line, "-display", "none", "-monitor", "none", "-no-reboot"]
        command += ["-dtb", str(work / kind.tree)] if kind.tree else []
        command += ["-serial", "null"] * kind.serials + ["-serial", f"file:{log}"]
        report(f"booting {image.name} as {machine}")
        with (work / "qemu.err").open("wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
        try:
            yield Guest(process, log, settings)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def unpack_xz(image: Path, raw: Path) -> None:
    """Unpack an image; blocks of zeros become holes.

    Raises:
        ImageError: It is damaged.
    """
    with raw.open("wb") as out:
        done = subprocess.run(
            [need("xz"), "--decompress", "--stdout", str(image)],
            stdout=out, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip()
        raise ImageError(f"{image} cannot be unpacked: {last}", "fetch or build it again")
