"""What a node tells of itself in numbers: collected when it is asked, from what the daemon has anyway."""
