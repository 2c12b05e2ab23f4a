"""One stack is one site: load the fleet, check the rules, declare the site."""

from pathlib import Path

import pulumi

from infra.acknowledged import OUTPUT, acknowledged
from infra.site import SiteStack
from infra.stack import checked_fleet, inputs

site_id = pulumi.get_stack()
fleet = checked_fleet(Path(__file__).parent, site_id)
site = SiteStack(fleet, site_id, inputs(fleet, site_id))
for name, value in site.outputs.items():
    pulumi.export(name, value)
pulumi.export(OUTPUT, acknowledged(fleet, site_id))
