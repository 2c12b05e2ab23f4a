"""BGP in the lab: real speakers (GoBGP) where the sites have VyOS and Cilium's agents.

`router` reads the rendered configuration of a router, `agent` the objects that the program gave to a cluster; `speaker`
runs what they say, and `exchange` is what a person or a test calls. What is left out: what VyOS and Cilium do beside
BGP, and FRR's own timing.
"""
