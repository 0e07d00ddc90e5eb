"""The command ``cohort``: one module a command group, and the few things they share."""
