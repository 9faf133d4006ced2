"""Real tests run only where they are asked for, by `-m real` or by their path: importing vLLM takes half a minute,
and without what `make test-real` installs it fails."""


def pytest_ignore_collect(collection_path, config):
    marks = config.getoption("markexpr", "")
    asked_for = "real" in marks and "not real" not in marks
    return None if asked_for or any("tests/real" in str(argument) for argument in config.args) else True
