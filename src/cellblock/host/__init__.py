"""Sessions on this machine: the trusted side. It starts zygotes by command line, never by import."""

from cellblock.host.collect import Limits
from cellblock.host.host import Host
from cellblock.host.session import Session
from cellblock.sandbox.policy import Filesystem, Network, Policy, Resources
from cellblock.sandbox.srt import SrtPolicy

__all__ = ["Filesystem", "Host", "Limits", "Network", "Policy", "Resources", "Session", "SrtPolicy"]
