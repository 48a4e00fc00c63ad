"""The commands of ``cloud-kit``, one file each."""
