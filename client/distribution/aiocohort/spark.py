"""Cohort on Spark: the session, the listener that commits offsets, and the errors of ``format("cohort")``."""

from aiocohort.own_packages import require_own_packages

require_own_packages(("protocol", "client"))

from client.spark import *  # noqa: E402, F403 - after the check, and all that its list names
