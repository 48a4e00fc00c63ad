# The guest of record_lsblk.py before its situations: file systems, modules, udev.
export PATH=/usr/sbin:/usr/bin
mountpoint -q /sys || mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null || true
mount -t tmpfs tmpfs /run
mkdir -p /mnt /run/lock /run/lvm /run/cryptsetup /tmp /var/tmp /var/lib/lvm
ln -sf /proc/self/fd /dev/fd
for module in virtio_pci virtio_blk virtio_scsi virtio_console ahci ata_piix sd_mod sr_mod nvme xhci_pci \
    usb_storage uas sdhci_pci mmc_block dm_mod dm_crypt dm_mirror dm_snapshot dm_multipath dm_thin_pool \
    dm_integrity raid1 raid456 raid0 btrfs xfs ext4 vfat exfat f2fs squashfs overlay isofs nls_ascii nls_utf8 nls_cp437 nls_iso8859_1; do
    modprobe "$module" || echo "no module $module"
done
modprobe bcache
modprobe zram num_devices=1
modprobe loop max_loop=4
modprobe brd rd_nr=1 rd_size=16384
/usr/lib/systemd/systemd-udevd --daemon
udevadm trigger --type=subsystems --action=add
udevadm trigger --type=devices --action=add
udevadm settle --timeout=120
sleep 3 # a card and sticks are found by their drivers in their own time
udevadm settle --timeout=120
