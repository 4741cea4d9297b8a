"""One module a command: arguments -> calls into the package -> files and a table."""
