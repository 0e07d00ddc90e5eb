"""Tests: units that mirror the packages, scripts of the group protocol, integration over real sockets and files."""
