"""The machine below: clock, systemd, signals, child processes, the board."""
