"""Runs a coordinator: pure cores over the partitions of an internal topic, with their timers and pending requests."""
