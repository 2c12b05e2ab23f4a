"""Applies a site's rendered configuration to its router: opted in, over SSH, taken back unless it proves itself."""
