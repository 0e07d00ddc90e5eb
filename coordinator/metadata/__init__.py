"""Who leads what is data: topics, partitions, leaders and epochs, in a store that is watched (law 6)."""
