"""The stages of an export: each resumable, each a function of its inputs."""
