"""Programs that the pages in docs show, with their tests."""
