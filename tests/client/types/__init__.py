"""Tests of the types that users hand in and get back."""
