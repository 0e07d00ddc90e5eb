"""Every error that a call of Cohort raises; ``CohortError`` is the root. ``client.errors`` describes the tree."""

from aiocohort.own_packages import require_own_packages

require_own_packages(("protocol", "client"))

from client.errors import *  # noqa: E402, F403 - after the check, and all of them
