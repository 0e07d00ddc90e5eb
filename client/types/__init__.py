"""The plain types that users hand in and get back: records, columns of records, and what an admin describes."""
