"""Invariants on the inputs of resources, as a Pulumi policy pack. One module per topic; `pack` lists all policies.

Leaves out what only documents show (`infra.rules`) and what only the state shows. Thin: nothing here knows a site.
"""
