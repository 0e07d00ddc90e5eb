"""Sockets in, decisions out: the listener, one object a connection, and the handlers of each request."""
