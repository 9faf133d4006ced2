"""The command line of real runs."""
