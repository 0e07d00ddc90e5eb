"""The demonstration: real files flow through a group while a member is killed, and nothing is lost."""
