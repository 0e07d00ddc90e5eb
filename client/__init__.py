"""Cohort for asyncio programs: members, consumers, producers, assignors, an admin and a command line."""
