"""Boot an image in QEMU, on a copy that takes all writes, with the image's own command line."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from boards.emulator.machine import MACHINES, Machine
from boards.image.partitions import partitions
from boards.image.unpack import copy_raw
from boards.onboard.settings import FILE, Settings, SettingsError
from boards.system.tool import Reporter, call, need
from edge_kit.errors import ImageError, UsageError

__all__ = ["Guest", "boot_files", "command_line", "settings_of", "start"]

_MOST_RESTARTS = 5
_RESTARTS = "reboot: Restarting system"


class Guest:
    """A running emulator.

    The kernel is QEMU's own business, not a boot loader's: a guest that restarts ends QEMU, and is
    booted again here, from what is on its boot partition by then.

    Args:
        machine: Which.
        disk: The card; written to.
        work: A directory for kernel, RAM disk and logs.
        log: Where the serial console goes, of all boots.
        ssh: Port of loopback that leads to the guest's SSH, or None.
        journal: Let the whole journal go to the console.

    Attributes:
        log: The console's file.
        settings: What the image says of its device.
        restarts: How often the guest has restarted itself.

    Raises:
        ImageError: The image has no kernel or invalid settings, or QEMU is missing.
    """

    def __init__(
        self, machine: Machine, disk: Path, work: Path, log: Path, ssh: int | None, journal: bool
    ) -> None:
        self.log = log
        self.restarts = 0
        self._machine = machine
        self._disk = disk
        self._work = work
        self._network = "user,id=net"
        self._network += f",hostfwd=tcp:127.0.0.1:{ssh}-:22" if ssh else ""
        self._journal = journal
        log.write_bytes(b"")
        # Once, at the start: what a power cut leaves of the file is the guest's to mend.
        self.settings = settings_of(disk, work)
        self._process = self._boot()

    def console(self) -> str:
        """Return what the guest has said so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def check(self) -> None:
        """Boot a guest again that restarts; notice one that will never come up.

        Raises:
            ImageError: The kernel panicked, QEMU has ended or the guest restarts again and again;
                the message holds its last words.
        """
        said = self.console()
        last = " / ".join(said.splitlines()[-5:])
        if "Kernel panic" in said:
            raise ImageError(f"the kernel panicked: {last}")
        if self._process.poll() is None:
            return
        if self._process.returncode or said.count(_RESTARTS) <= self.restarts:
            error = (self._work / "qemu.err").read_text(encoding="utf-8", errors="replace").strip()
            raise ImageError(f"QEMU ended with status {self._process.returncode}: {error} {last}")
        self.restarts += 1
        if self.restarts > _MOST_RESTARTS:
            raise ImageError(f"the guest restarts for ever: {last}")
        self._process = self._boot()

    def cut_power(self) -> None:
        """End the emulator without a shutdown, and boot what is on its card by then."""
        self._process.kill()
        self._process.wait()
        self._process = self._boot()

    def stop(self) -> None:
        """End the emulator, as a power cut would."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _boot(self) -> subprocess.Popen[bytes]:
        kind, work = self._machine, self._work
        line = command_line(boot_files(self._disk, work, kind.tree), kind.console)
        line += " systemd.journald.forward_to_console=1" if self._journal else ""
        blanks = {"disk": self._disk, "network": self._network}
        # The emulator ends with this process, even when that is killed.
        command = [need("setpriv"), "--pdeathsig", "KILL", need("qemu-system-aarch64")]
        command += [word.format_map(blanks) for word in kind.options]
        command += ["-kernel", str(work / "vmlinuz"), "-initrd", str(work / "initrd.img")]
        command += ["-append", line, "-display", "none", "-monitor", "none", "-no-reboot"]
        command += ["-dtb", str(work / kind.tree)] if kind.tree else []
        command += ["-chardev", f"file,id=console,path={self.log},append=on"]
        command += ["-serial", "null"] * kind.serials + ["-serial", "chardev:console"]
        with (work / "qemu.err").open("wb") as errors:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)


def command_line(text: str, console: str) -> str:
    """Return an image's kernel command line with QEMU's console instead of the board's."""
    kept = [word for word in text.split() if not word.startswith("console=")]
    return " ".join([f"console={console}", *kept])


def boot_files(image: Path, out: Path, tree: str) -> str:
    """Copy kernel, RAM disk and device tree from an image; return its kernel command line.

    Raises:
        ImageError: The image has no boot partition, or it lacks a file.
    """
    files = {"vmlinuz": ("kernel8.img",), "initrd.img": ("initramfs8",), "cmdline.txt": ()}
    # What Raspberry Pi's kernel calls the trees that Linux calls bcm2837.
    files |= {tree: (tree.replace("bcm2837", "bcm2710"),)} if tree else {}
    for name, in_stock in files.items():
        _take(image, (name, *in_stock), out / name)
    return (out / "cmdline.txt").read_text(encoding="ascii")


def settings_of(image: Path, work: Path) -> Settings:
    """Return what an image says of its device.

    Raises:
        ImageError: The settings are missing or invalid.
    """
    _take(image, (FILE,), work / FILE)
    try:
        return Settings.parse((work / FILE).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, SettingsError) as error:
        raise ImageError(
            f"{FILE} on the image's first partition cannot be used: {error}",
            "repair it there, or make the image again; docs/images.md describes it",
        ) from None


def _take(image: Path, names: Sequence[str], out: Path) -> None:
    """Copy the first of these files that the boot partition holds."""
    source = f"{image}@@{partitions(image)[0].start}"
    error = None
    for name in names:
        try:
            call(["mcopy", "-n", "-o", "-i", source, f"::/{name}", out])
        except ImageError as missing:
            error = missing
        else:
            return
    raise ImageError(
        f"{image} cannot be booted here: {names[0]} is missing ({error})",
        "only images that edge-kit built or customized have it",
    )


@contextmanager
def start(
    image: Path,
    machine: str,
    report: Reporter,
    *,
    log: Path | None = None,
    ssh: int | None = None,
    journal: bool = False,
) -> Iterator[Guest]:
    """Boot an image; the emulator ends with the context, and the image stays as it was.

    Args:
        image: ``….img`` or ``….img.xz``.
        machine: One of `MACHINES`.
        report: Told what happens.
        log: Where the console goes; kept when given.
        ssh: Port of loopback that shall lead to the guest's SSH.
        journal: Let the whole journal go to the console, for finding mistakes.

    Raises:
        UsageError: There is no such machine.
        ImageError: The image cannot be read, or a tool is missing.
    """
    kind = MACHINES.get(machine)
    if kind is None:
        raise UsageError(f"there is no machine {machine!r}", f"take one of {', '.join(MACHINES)}")
    need("qemu-system-aarch64")
    with tempfile.TemporaryDirectory(prefix="edge-boot-") as name:
        work = Path(name)
        disk = work / "card.img"
        report(f"copying {image}")
        copy_raw(image, disk)
        # A card is larger than the image, which the first boot has to notice; and QEMU wants cards
        # of a power of two.
        with disk.open("r+b") as file:
            file.truncate(1 << max(32, (disk.stat().st_size - 1).bit_length()))
        report(f"booting {image.name} as {machine}")
        guest = Guest(kind, disk, work, log or work / "console.log", ssh, journal)
        try:
            yield guest
        finally:
            guest.stop()
