"""What is known of each board: one folder a board, and the module that reads it."""
