"""The real world behind the ports: dataset, environments, trainer. The engines are `executor.engines`."""
