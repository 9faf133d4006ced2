"""Environments: tasks, the tools that a trajectory may call, and rewards. One module each."""
