"""The command line: thin, calls the program and the lab."""
