"""Other programs of this machine, and root inside a user namespace."""
