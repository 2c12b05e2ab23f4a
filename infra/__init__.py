"""The program: what runs in an update of one site."""
