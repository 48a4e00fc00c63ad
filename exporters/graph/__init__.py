"""From a user's classifier to a traced and cut graph."""
