"""Programs that the README shows, with their tests."""
