"""Source and sink of Spark, as far as they need no daemon and no JVM."""
