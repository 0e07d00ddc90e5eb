"""Chaos with real processes: members, producers and a daemon are hurt on a seeded schedule, and their ledgers are judged."""
