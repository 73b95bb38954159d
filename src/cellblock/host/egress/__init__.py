"""The way from a session to the internet: an allowlisting proxy on the trusted side (docs/egress.md)."""

from cellblock.host.egress.gate import Dial, EgressLimits, Resolve
from cellblock.host.egress.proxy import EgressProxy, environment
from cellblock.host.egress.rules import Denial, Rule, Rules

__all__ = ["Denial", "Dial", "EgressLimits", "EgressProxy", "Resolve", "Rule", "Rules", "environment"]
