"""HTML pages that need no network: rooms say what is on a page, this one draws it."""
