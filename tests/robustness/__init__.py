"""What clusters, broken files and hostile ones do to a run."""
