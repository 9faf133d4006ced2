"""What went wrong, in one line: by what a user gave, or by what a policy did.

`UserError` is for input that a person can mend: a key, a file, a number; programs print its message on stderr and
exit with status 2. `PolicyError` is a defect of a policy, with status 1. Everything else is a defect of the program
and shows its traceback.
"""


class UserError(Exception):
    """One line: the place, what is wrong there, and the mend."""


class PolicyError(Exception):
    """One line: which policy failed, when, on which event, and what it raised where. Its cause is what was raised."""


def refused_by_file_system(error: OSError) -> str:
    """One line for a command line: what could not be read or written (full, read-only, a name too long)."""
    place = "" if error.filename is None else f"{str(error.filename)[:200]}: "
    return f"{place}{error.strerror or error}; free space or give another --out"
