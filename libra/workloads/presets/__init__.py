"""Preset workloads as data: one YAML file each, every number with its source beside it."""
