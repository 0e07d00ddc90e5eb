"""The metadata store of one node, served to others: ``server`` offers it, ``store`` is what the others open."""
