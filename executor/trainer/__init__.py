"""A Megatron-Core trainer in processes of its own, and how the driver talks to it. Nothing here loads torch on import
but the modules that run inside a worker."""
