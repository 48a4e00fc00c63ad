"""What the board goes through while it is measured."""
