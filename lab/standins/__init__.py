"""Programs that run inside the lab's nodes in place of the real ones. Standard library only, to keep nodes small."""
