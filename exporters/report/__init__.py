"""What an export found out, as a page."""
