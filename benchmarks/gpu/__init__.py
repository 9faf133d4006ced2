"""Step times of a real vLLM engine: `python -m benchmarks.gpu --help`. Imports no vLLM by itself."""
