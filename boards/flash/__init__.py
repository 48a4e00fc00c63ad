"""Write an image to a card: find the card, refuse other disks, write, read back."""
