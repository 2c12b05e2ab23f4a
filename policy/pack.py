"""All policies of the pack. Importing the topics registers theirs."""

from policy import charts, cilium, commands, federation, guests, network, objects, secrecy
from policy.judging import POLICIES

NAME = "fleet"
TOPICS = (guests, commands, secrecy, charts, cilium, network, federation, objects)

__all__ = ["NAME", "POLICIES", "TOPICS"]
