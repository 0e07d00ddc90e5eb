"""The group coordinator's pure core: groups, members, generations and offsets. No I/O, clock, randomness or asyncio."""
