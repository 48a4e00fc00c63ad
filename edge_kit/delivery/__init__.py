"""Get each low-confidence sample exactly one result: spool, window, courier, results."""
