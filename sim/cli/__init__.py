"""The command line of the simulator: `python -m sim VERB ...`.

stdout carries results, stderr carries talk (progress, errors). A mistake of the user is one line on stderr and
exit status 2; a result that says no (a replay that differs, a sweep with failed cells) is status 1; an interrupt
is 130.
"""
