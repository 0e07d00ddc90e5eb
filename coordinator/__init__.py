"""The coordinator daemon: pure cores for groups, offsets and logs inside a thin asyncio shell."""
