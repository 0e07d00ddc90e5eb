"""The daemon's HTTP port: metrics and health. Needs the extra ``web``; nothing of it is imported where the port is off."""
