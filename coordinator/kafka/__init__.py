"""The port for Kafka's clients: their requests become Cohort's own, which the handlers of ``coordinator.server`` decide."""
