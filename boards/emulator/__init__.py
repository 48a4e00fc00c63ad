"""Boot an image in QEMU and talk to what runs inside."""
