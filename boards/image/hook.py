"""What a customized stock image runs at its first start, from the kernel's command line.

systemd-debug-generator(8) and kernel-command-line(7) describe ``systemd.run=``: systemd starts this
script instead of everything else, and restarts the board when it has ended well.
"""

from __future__ import annotations

from boards.onboard.settings import FILE

__all__ = ["HOOK", "LOG", "PAYLOAD", "SCRIPT", "SETUP"]

PAYLOAD = "edge-kit.tar.xz"
SCRIPT = "edge-kit-setup.sh"
LOG = "edge-kit-setup.log"
_HOOK = (
    f"systemd.run=/boot/firmware/{SCRIPT}", "systemd.run_success_action=reboot",
    "systemd.run_failure_action=none", "systemd.unit=kernel-command-line.target",
)  # fmt: skip
HOOK = " ".join(_HOOK)
_UNHOOK = " ".join("-e 's| {}||'".format(word.replace(".", "\\.")) for word in _HOOK)

# No step ends the script: a board without a screen that stops here would be lost. The last step
# alone matters: with the hook still there the board would restart for ever.
SETUP = f"""#!/bin/sh
# edge-kit, once, from the kernel's command line; then the board starts again without this. What
# was done, and what failed, is in {LOG}. Run again by hand: sudo sh {SCRIPT}
root=
boot=/boot/firmware
log=$boot/{LOG}
failed=

say() {{
  echo "edge-kit: $*"
  echo "$*" >>"$log"
}}

step() {{
  name=$1
  shift
  if told=$("$@" 2>&1); then
    say "done: $name"
  else
    say "failed: $name: $told"
    failed="$failed $name;"
  fi
}}

unpack() {{
  tar --extract --xz --file "$boot/{PAYLOAD}" --directory "$root/" --no-overwrite-dir
}}

make_user() {{
  systemd-sysusers edge-kit.conf && systemd-tmpfiles --create edge-kit.conf || return 1
  for folder in bundles photos; do
    place=$root/var/lib/edge-kit/$folder
    [ ! -e "$place" ] || chown -R root:edge-kit "$place" || return 1
  done
}}

enable_units() {{
  systemctl enable edge-kit.service edge-kit-firstboot.service \\
    edge-kit-enroll.service edge-kit-enroll.timer
}}

# Stock images leave SSH off. Only keys of edge-kit.toml may log in, no passwords.
enable_ssh() {{
  systemctl enable ssh.service
}}

# Stock images block the radio until the country is known; edge-kit.toml names it.
unblock_wifi() {{
  grep -q '^ *ssid' "$boot/{FILE}" || return 0
  options=$root/etc/modprobe.d/zz-edge-kit-rfkill.conf
  echo "options rfkill default_state=1" >"$options" || return 1
  state=$root/var/lib/NetworkManager
  mkdir -p "$state"
  printf '[main]\\nNetworkingEnabled=true\\nWirelessEnabled=true\\n' \\
    >"$state/NetworkManager.state" || return 1
  if command -v rfkill; then rfkill unblock wlan; fi
  for saved in "$root"/var/lib/systemd/rfkill/*:wlan; do
    [ ! -e "$saved" ] || echo 0 >"$saved"
  done
}}

unhook() {{
  sed -i {_UNHOOK} "$boot/cmdline.txt"
  ! grep -q {SCRIPT} "$boot/cmdline.txt"
}}

step "unpack edge-kit" unpack
step "make its user" make_user
step "enable its units" enable_units
step "enable SSH" enable_ssh
step "unblock Wi-Fi" unblock_wifi
step "remove the hook from cmdline.txt" unhook
if grep -q {SCRIPT} "$boot/cmdline.txt"; then
  say "the card cannot be written: starting without a restart; a broken card, or its lock?"
  sync
  systemctl --no-block start multi-user.target
  exit 1
fi
if [ -z "$failed" ]; then
  rm -f "$boot/{PAYLOAD}" "$boot/{SCRIPT}"
  say "edge-kit is installed; it starts with the next boot"
else
  say "not everything worked:$failed the board goes on without"
  say "write the card again with a new image, or log in and run: sudo sh $boot/{SCRIPT}"
fi
sync
exit 0
"""
