"""Router layer: the VyOS side of a site, rendered from the documents, and compared with what a router has.

Nothing of it runs in an update: `fleet render` writes files, `fleet vyos diff` reads one. Leaves out whatever else a
router does: it stays the site's own.
"""
