"""What every command line shares: lazily loaded commands, and how a command ends."""
