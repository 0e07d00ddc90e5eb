"""Source and sink of Spark against real daemons: most without a JVM, the rest in one session (marker spark)."""
